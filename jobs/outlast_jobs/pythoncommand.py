"""Take a command apart that runs Python: interpreter, its options, and what it is to run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct

ASKED = (
    "a command whose first word is a Python, and that runs a script or a module: "
    "[python, train.py, …] or [python, -m, package.module, …]"
)
"""What can be taken apart, in words."""

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_ALONE = frozenset("bBdEIOPqsSuv")  # letters that may stand together in one word
_PLACEHOLDER = "{python}"  # of a job file: the Python that runs outlast


class PythonCommand(Struct, frozen=True):
    """A command of Python: ``script`` is a path or, where ``is_module``, the name of a module."""

    interpreter: str
    options: tuple[str, ...]
    script: str
    is_module: bool
    arguments: tuple[str, ...]


def parse_python(command: Sequence[str]) -> PythonCommand | str:
    """The command taken apart, or why it can't be: the words of python(1), as far as they run a file."""
    first = command[0] if command else ""
    if first != _PLACEHOLDER and not PurePath(first).name.startswith("python"):
        return f'"{first}" is no Python'
    at = 1
    while at < len(command):
        word = command[at]
        if word in _WITH_VALUE:
            at += 2
        elif word == "-m":
            if at + 1 >= len(command):
                return "-m names no module"
            return _made(command, at, command[at + 1], at + 2, is_module=True)
        elif word.startswith(("-X", "-W", "--check-hash-based-pycs=")) or _is_flags(word):
            at += 1
        elif word.startswith("-"):
            return f'with "{word}" it runs no script'
        else:
            return _made(command, at, word, at + 1, is_module=False)
    return "it names no script"


def _is_flags(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and all(letter in _ALONE for letter in word[1:])


def _made(command: Sequence[str], end: int, script: str, rest: int, *, is_module: bool) -> PythonCommand:
    return PythonCommand(command[0], tuple(command[1:end]), script, is_module, tuple(command[rest:]))
