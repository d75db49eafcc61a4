"""Run a cluster's command-line tools beside the loop: each with its own time, and never waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from ..hooks import MARK
from ..spawn import by_shell

_MOST = 1 << 20  # bytes of output that are read
_AGAIN = 1.0  # seconds until one that KILL did not end is killed once more
_MISSING = 127  # what a shell exits with where there is no such program (POSIX)
_FORBIDDEN = 126


class Outcome(Struct, frozen=True):
    """How a tool ended: ``ok``, ``failed``, ``missing``, ``late`` or ``killed`` by somebody else."""

    kind: str
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.kind == "ok"


@dataclass
class _Running:
    tool: str
    until: float
    seconds: float
    out: int
    err: int
    then: Callable[[Outcome], None]
    late: bool = False


class Tools:
    """Starts tools, knows their pids so that they are not taken for leftovers, and ends late ones.

    Only the loop's thread may use it.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._running: dict[int, _Running] = {}

    def start(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        now: float,
        seconds: float,
        then: Callable[[Outcome], None],
        stdin: str = "",
    ) -> None:
        """Start a tool; ``then`` is called when it has ended, or was ended because it took too long."""
        files: list[int] = []
        try:
            files += [_memory("out")]
            files += [_memory("err")]
            files += [_memory("in", stdin)] if stdin else []
            child = subprocess.Popen(
                by_shell(words),
                env={**env, MARK: self._mark},
                stdin=files[2] if stdin else subprocess.DEVNULL,
                stdout=files[0],
                stderr=files[1],
                start_new_session=True,
            )
        except OSError as error:
            for fd in files:
                os.close(fd)
            then(Outcome("killed", err=f"it could not be started: {error.strerror or error}"))
            return
        out, err, *given = files
        for fd in given:
            os.close(fd)
        child.returncode = 0  # reaped by the loop
        self._running[child.pid] = _Running(words[0], now + seconds, seconds, out, err, then)

    def ended(self, pid: int, status: int) -> bool:
        """A child ended; whether it was a tool."""
        run = self._running.pop(pid, None)
        if run is None:
            return False
        out, err = _read(run.out), _read(run.err)
        code = os.waitstatus_to_exitcode(status)
        if run.late:
            outcome = Outcome("late", out, f"{run.tool} did not answer within {run.seconds:g} s")
        elif code == _MISSING:
            outcome = Outcome("missing", out, f"{run.tool} is not in PATH")
        elif code == _FORBIDDEN:
            outcome = Outcome("missing", out, f"{run.tool} cannot be executed")
        elif code < 0:
            outcome = Outcome("killed", out, f"{run.tool} was ended by {signal.Signals(-code).name}")
        else:
            outcome = Outcome("ok" if code == 0 else "failed", out, err or f"{run.tool} exited with {code}")
        run.then(outcome)
        return True

    def late(self, now: float) -> None:
        """End the tools that are past their time."""
        for pid, run in self._running.items():
            if now >= run.until:
                run.late, run.until = True, now + _AGAIN
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def close(self) -> None:
        """End whatever still runs: nobody waits for it any more."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def next_due(self) -> float | None:
        """When the next tool runs out of time."""
        return min((run.until for run in self._running.values()), default=None)


def _memory(name: str, text: str = "") -> int:
    """A file in memory: unlike a pipe, nothing that a tool leaves behind can hold it against us."""
    fd = os.memfd_create(name)
    if text:
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read(fd: int) -> str:
    try:
        return os.pread(fd, _MOST, 0).decode(errors="replace").strip()
    finally:
        os.close(fd)
