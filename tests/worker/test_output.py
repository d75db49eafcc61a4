"""What a training prints when its log's disk takes nothing more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GUARD = "import sys; from outlast_worker.output import guard; guard(); "


def python(code: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-u", "-c", code], timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_costs_lines_and_not_the_training(stream: str) -> None:
    """A script that prints to a full disk goes on to its end; without the guard it dies of the first print."""
    code = f"print('x', file=sys.{stream}); sys.{stream}.buffer.write(b'y'); sys.exit(7)"
    with open("/dev/full", "wb") as full:
        assert python(GUARD + code, **{stream: full}).returncode == 7
        assert python("import sys; " + code, **{stream: full}).returncode == 1


def test_what_was_lost_is_counted_and_told_once(tmp_path: Path) -> None:
    """When there is room again the log says how many bytes are missing, once, and goes on."""
    code = GUARD + (
        "import resource as r; hard = r.getrlimit(r.RLIMIT_FSIZE)[1]\n"
        "print('first')\n"
        "r.setrlimit(r.RLIMIT_FSIZE, (8, hard))\n"
        "[print('lost', n) for n in range(10)]\n"
        "r.setrlimit(r.RLIMIT_FSIZE, (hard, hard))\n"
        "print('again'); print('last')\n"
    )
    with (tmp_path / "log").open("ab") as log:
        assert python(code, stdout=log).returncode == 0
    assert (tmp_path / "log").read_text() == (
        "first\nlo\noutlast: 68 bytes of output are missing here: File too large\nagain\nlast\n"
    )


def test_lines_come_at_once_and_as_they_are(tmp_path: Path) -> None:
    """Half lines, other characters and a progress bar are on disk before a kill, in the order of both streams."""
    code = GUARD + (
        "import os, signal\n"
        "print('ä', end=''); print('\\rb', end='', file=sys.stderr); print('c')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with (tmp_path / "log").open("ab") as log:
        python(code, stdout=log, stderr=log, env={"PYTHONUTF8": "1", "PYTHONPATH": ":".join(sys.path)})
    assert (tmp_path / "log").read_bytes() == "ä\rbc\n".encode()


def test_another_failure_is_raised_and_others_streams_are_left_alone() -> None:
    """A reader that has gone is told to the script as ever, and a stream that somebody replaced stays."""
    gone = python(
        GUARD + "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1); print('x')", stderr=subprocess.PIPE
    )
    assert b"BrokenPipeError" in gone.stderr
    kept = (
        "import io, sys; sys.stdout = mine = io.StringIO(); "
        + GUARD
        + "sys.exit(0 if sys.stdout is mine else 1)"
    )
    assert python(kept).returncode == 0
    twice = GUARD + "one = sys.stdout; guard(); sys.exit(0 if sys.stdout is one else 1)"
    assert python(twice).returncode == 0
