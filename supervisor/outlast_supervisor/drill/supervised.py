"""One scratch run: its folder, its supervisor as a process, its gate, and waiting for any of them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outlast_jobs import events
from outlast_jobs.errors import IntegrityError
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job
from outlast_jobs.journal import Record, read_journal
from outlast_supervisor import linux, processes

from .census import Census
from .gate import Gate
from .scratch import copy_of, environment, own_environment, run_of

_LOOK = 0.003  # seconds between two looks at what is waited for


class Stuck(Exception):
    """What was waited for did not come; its text says what."""


class ScratchRun:
    """A copy of the job in a folder of its own; its supervisor can be started again and again."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        census: Census,
        *,
        every_steps: int,
        stop_at: int | None,
        hang: float | None,
    ) -> None:
        folder.mkdir()
        self.run = run_of(folder)
        self.gate = Gate(folder / "gate")
        self.hang = hang
        self._census = census
        self._workdir = job.workdir
        self._file = copy_of(job, folder, every_steps, hang)
        self._env = environment(own_environment(), self.gate.folder, stop_at)
        self._log = folder / "supervisor.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        """How the newest supervisor ended; None while it runs."""
        census.begin_run()

    def start(self) -> None:
        """`outlast run`, in a session of its own."""
        self.code = None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlast_supervisor.cli", "run", "-v", str(self._file)],
                cwd=self._workdir,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: linux.set_parent_death_signal(signal.SIGTERM),
            )
        self._census.supervisor = self._process.pid

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid if self._process is not None else 0

    def over(self) -> bool:
        """Whether the supervisor has ended."""
        if self.code is None and self._process is not None:
            self.code = self._process.poll()
        return self.code is not None

    def until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait; Stuck where it did not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Stuck(f"{what} did not come within {seconds:.0f} s")
            time.sleep(_LOOK)

    def stops_at_gate(self, what: str, seconds: float) -> bool:
        """Wait until a process stands at the point that was asked for; False where the run ended before."""
        self.until(lambda: self.gate.taken() or self.over(), what, seconds)
        if self.gate.stopped is None:
            self.gate.taken()
        return self.gate.stopped is not None

    def signal(self, number: int) -> None:
        """Signal the supervisor alone."""
        if self._process is not None:
            self._process.send_signal(number)

    def records(self, *names: str) -> list[Record]:
        """What the journal holds of these events."""
        with contextlib.suppress(IntegrityError, OSError):
            return [r for r in read_journal(self.run).records if not names or r.event in names]
        return []

    def trainers(self) -> dict[int, int]:
        """The pid of each attempt's trainer."""
        found = self.records(events.ATTEMPT_ATTACHED)
        return {int(r.data["attempt"]): int(r.data["pid"]) for r in found if r.data.get("pid")}

    def worker(self, attempt: int) -> ProcessIdentity | None:
        """The trainer of an attempt, or what will become it: the oldest process of the attempt."""
        alive = [i for i, number in self._census.alive().items() if number == attempt]
        trainer = self.trainers().get(attempt)
        exact = [i for i in alive if i.pid == trainer]
        return next(iter(exact or sorted(alive, key=lambda i: (i.start, i.pid))), None)

    def end(self) -> None:
        """Nothing of it lives on, and nobody waits for it."""
        self.gate.disarm()
        self._census.kill_all()
        self.over()

    def send_all(self, number: int) -> None:
        """Signal the supervisor and all that it started, the supervisor first."""
        self.signal(number)
        for identity in self._census.alive():
            processes.send(identity, number)
