"""Which commands run a script or a module with Python, and which do not."""

from __future__ import annotations

import pytest

from outlast_jobs.pythoncommand import PythonCommand, parse_python


@pytest.mark.parametrize(
    ("words", "options", "script", "is_module", "arguments"),
    [
        ("python train.py", "", "train.py", False, ""),
        ("{python} -u train.py --steps 5", "-u", "train.py", False, "--steps 5"),
        ("/opt/x/python3.12 -X dev -W error -OO ./t.py -m", "-X dev -W error -OO", "./t.py", False, "-m"),
        ("python3 -Xdev -Werror -uB -m pkg.mod -u", "-Xdev -Werror -uB", "pkg.mod", True, "-u"),
        ("python --check-hash-based-pycs never t.py", "--check-hash-based-pycs never", "t.py", False, ""),
    ],
)
def test_a_python_command_is_taken_apart(
    words: str, options: str, script: str, is_module: bool, arguments: str
) -> None:
    """Interpreter, its options, the script or module, and the script's own arguments."""
    command = words.split()
    expected = PythonCommand(command[0], tuple(options.split()), script, is_module, tuple(arguments.split()))
    assert parse_python(command) == expected


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("bash -c train", '"bash" is no Python'),
        ("torchrun train.py", '"torchrun" is no Python'),
        ("python", "it names no script"),
        ("python -u", "it names no script"),
        ("python -c pass", 'with "-c" it runs no script'),
        ("python -", 'with "-" it runs no script'),
        ("python -i t.py", 'with "-i" it runs no script'),
        ("python -x t.py", 'with "-x" it runs no script'),
        ("python -m", "-m names no module"),
        ("python --version", 'with "--version" it runs no script'),
    ],
)
def test_what_is_none_says_why(words: str, why: str) -> None:
    """A shell, a launcher, code on the command line, standard input: each with its reason."""
    assert parse_python(words.split()) == why
