"""Failures found in logs: the last exception of a worker that could not report it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shortage import no_more_threads

from outlast_jobs.failure import Failure, signature_from_log


def log_of(script: Path, text: str) -> str:
    script.write_text(text)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(
    ("text", "exception", "where", "message"),
    [
        (
            "def f():\n    raise ValueError('no: such\\nthing')\nf()\n",
            "ValueError",
            "t.py:2 in f",
            "no: such",
        ),
        ("x = 1\ny = zzz\n", "NameError", "t.py:2 in <module>", "name 'zzz' is not defined"),
        ("def f(:\n    pass\n", "SyntaxError", "t.py:1", "invalid syntax"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", "t.py:1 in <module>", ""),
        (
            "def f(n):\n    return f(n + 1)\nf(0)\n",
            "RecursionError",
            "t.py:2 in f",
            "maximum recursion depth exceeded",
        ),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n",
            "KeyError",
            "t.py:4 in <module>",
            "'k'",
        ),
    ],
)
def test_the_last_exception_of_a_real_log_is_found(
    tmp_path: Path, text: str, exception: str, where: str, message: str
) -> None:
    """Class, last traceback line and message, of what the interpreter really prints; with noise around it."""
    printed = log_of(tmp_path / "t.py", text)
    for noisy in (
        printed,
        f"step 1\n{printed}bye\n",
        "".join(f"[rank0]: {line}\n" for line in printed.splitlines()),
    ):
        found = signature_from_log(noisy)
        assert found is not None
        assert (found.exception, found.where) == (exception, where)
        assert found.message.startswith(message)
        assert (found.step, found.phase, found.passing) == (None, None, False)


def test_passing_kinds_are_known_by_name() -> None:
    """Errors of storage, network, memory and the number of processes may pass; others are not known to."""

    def passing(name: str, message: str = "x") -> bool:
        found = signature_from_log(
            f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n{name}: {message}\n'
        )
        if found is None:
            raise ValueError(name)
        return found.passing

    for name in ("OSError", "FileNotFoundError", "ConnectionResetError", "TimeoutError", "MemoryError"):
        assert passing(name)
    assert passing("torch.OutOfMemoryError")
    with no_more_threads(), pytest.raises(RuntimeError) as raised:
        threading.Thread().start()
    assert passing("RuntimeError", str(raised.value))
    assert not passing("RuntimeError")
    assert not passing("ValueError")
    assert not passing("my.own.Error")
    assert not passing("print")


def test_a_log_without_an_exception_has_no_signature() -> None:
    """Words that look like one are not taken for one."""
    assert signature_from_log("") is None
    assert signature_from_log("ValueError: printed by hand\nstep 3\n") is None
    assert signature_from_log('  File "a.py", line 1, in f\n') is None


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    """Logs are not ours: nothing in them makes the reader fail."""
    signature_from_log(text)


def test_a_report_of_wrong_types_is_read_as_far_as_it_goes() -> None:
    """A worker's own JSON is taken with care."""
    found = Failure.from_dict({"exception": "E", "message": 5, "step": True, "phase": 3, "passing": "yes"})
    assert found == Failure("E", "5", "", None, None, False)
    assert len(Failure.from_dict({"message": "x" * 9999}).message) == 500
