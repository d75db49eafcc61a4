"""Who is alive of a drilled run, attempt by attempt: everything that descends from the drill itself."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import linux, processes

_EVERY = 0.1  # seconds between two looks
_PATIENCE = 20.0  # seconds until all that was killed must be gone


class Census:
    """Looks at all descendants again and again. Orphans come to the drill, so that none can hide.

    A process belongs to the attempt that its environment names. One that cleared it belongs to that of its
    parent when it was first seen, or else to the newest: what a supervisor starts for itself bears its mark.
    """

    def __init__(self) -> None:
        linux.become_subreaper()
        self.supervisor = 0
        """The pid that somebody else waits for."""
        self._attempts: dict[ProcessIdentity, int] = {}
        self._names: dict[ProcessIdentity, str] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="census", daemon=True)
        self._thread.start()
        self._together: dict[tuple[int, int], set[ProcessIdentity]] = {}

    def alive(self) -> dict[ProcessIdentity, int]:
        """Who lives now, each with its attempt; 0 for what belongs to none."""
        with self._lock:
            me = os.getpid()
            found: dict[ProcessIdentity, int] = {}
            of_pid: dict[int, int] = {}
            for pid, parent in processes.descendants([me]).items():
                identity = ProcessIdentity.of(pid)
                if identity is None:
                    self._reap(pid, parent == me)
                    continue
                attempt = _attempt_of(pid)
                if attempt is None:
                    newest = max(self._attempts.values(), default=0)
                    attempt = self._attempts.get(identity) or of_pid.get(parent) or newest
                self._attempts[identity] = of_pid[pid] = found[identity] = attempt
                if identity not in self._names:
                    self._names[identity] = _command(pid)
            return found

    def described(self, found: Iterable[ProcessIdentity]) -> tuple[str, ...]:
        """Each as people call it."""
        return tuple(f"{i.pid} ({self._names.get(i) or 'unknown'})" for i in found)

    def before(self, attempt: int) -> list[ProcessIdentity]:
        """Those of earlier attempts that live."""
        return [i for i, number in self.alive().items() if 0 < number < attempt and i.alive()]

    def together(self, pids: dict[int, int]) -> list[str]:
        """Pairs of attempts whose trainers, of these pids, lived at one moment."""
        with self._lock:
            pairs = {pair: set(who) for pair, who in self._together.items()}
        return [
            f"attempts {one} and {two}"
            for (one, two), who in pairs.items()
            if {pids.get(one), pids.get(two)} <= {i.pid for i in who}
        ]

    def begin_run(self) -> None:
        """Attempts count from 1 again."""
        with self._lock:
            self._together.clear()
            self._attempts.clear()

    def kill_all(self) -> None:
        """Nothing that was started for the run lives on; raises TimeoutError where that can't be had."""
        deadline = time.monotonic() + _PATIENCE
        while found := self.alive():
            for identity in found:
                processes.send(identity, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot end {', '.join(self.described(found))}")
            time.sleep(0.005)

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            found = self.alive()
            numbers = sorted({number for number in found.values() if number})
            if len(numbers) < 2:
                continue
            # A list is not of one moment: who was dead by the time that the other began is not with it.
            still = {i: number for i, number in found.items() if number and i.alive()}
            with self._lock:
                for one, two in itertools.pairwise(numbers):
                    who = {i for i, number in still.items() if number in (one, two)}
                    self._together.setdefault((one, two), set()).update(who)

    def _reap(self, pid: int, ours: bool) -> None:
        if ours and pid != self.supervisor:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _attempt_of(pid: int) -> int | None:
    """The attempt that a process was started for, 0 for what is a supervisor's own, None for neither."""
    mark, ours = f"{Env.ATTEMPT}=".encode(), f"{Env.DRILL}=".encode()
    environ: list[bytes] = []
    with contextlib.suppress(OSError):
        environ = processes.environment_of(pid)
    for entry in environ:
        if entry.startswith(mark):
            return int(entry[len(mark) :])
    return 0 if any(entry.startswith(ours) for entry in environ) else None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return words.decode(errors="replace").strip()[:80]
    return ""
