"""The supervisors that live, and what is known of those that ended; carries out what was planned."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlast_jobs.contract import ExitCode
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import processes

from . import supervisors
from .books import Books, JobState, Places
from .model import Action, Past, Reload, Start, State, Stop, Supervisor
from .outcome import final_state, outcome
from .telling import Tell

LISTENS_SOON = 0.2
"""Seconds until it is looked again whether a young supervisor can be told something."""


class Herd:
    """Knows each supervisor by its run directory."""

    def __init__(
        self, folder: Path, slots: tuple[str, ...], tell: Tell, adopted: Callable[[Supervisor], None]
    ):
        self._folder, self._logs = folder, Places(folder).logs
        self._gpus = supervisors.deals_gpus(slots)
        self._tell, self._adopted = tell, adopted
        self.living: dict[str, Supervisor] = {}
        self.past: dict[str, Past] = {}

    def adopt(self, books: Books | None = None) -> None:
        """Take up supervisors of this folder that an earlier daemon started; `books` is what it left."""
        known = {supervisor.process for supervisor in self.living.values()}
        told = {job.process: job for job in books.jobs.values() if job.process} if books else {}
        for process, mark in supervisors.find(self._folder).items():
            if process in known or mark.run_dir in self.living:
                continue
            left = told.get(str(process), _UNKNOWN)
            found = Supervisor(
                run_dir=mark.run_dir,
                file=mark.file,
                process=process,
                slots=mark.slots,
                version=left.version,
                digest=left.digest,
                began=time.monotonic(),
                ours=False,
            )
            self.living[found.run_dir] = found
            self._adopted(found)
            self._tell("taken up", found.file, f"process {process.pid} goes on")

    def carry(self, action: Action) -> float | None:
        """Do it; the seconds after which it has to be tried again, where it was too early."""
        match action:
            case Start():
                self._start(action)
            case Stop(supervisor, reason):
                self.living[supervisor.run_dir] = replace(supervisor, stopping=reason)
                self._tell("stopping", supervisor.file, f"{reason}; process {supervisor.process.pid} saves")
                processes.send(supervisor.process, signal.SIGTERM)
            case Reload(supervisor, entry, reason):
                if not supervisors.listens(supervisor.process):
                    return LISTENS_SOON
                processes.send(supervisor.process, signal.SIGHUP)
                told = replace(supervisor, version=entry.version, digest=entry.digest)
                self.living[supervisor.run_dir] = told
                self._tell("reloaded", entry.file, f"{reason}; process {told.process.pid} reads it again")
        return None

    def reap(self) -> bool:
        """Collect the children that ended; whether there were any."""
        ended: list[tuple[int, int]] = []
        processes.reap(lambda pid, status: ended.append((pid, status)))
        for pid, status in ended:
            for supervisor in list(self.living.values()):
                if supervisor.ours and supervisor.process.pid == pid:
                    self.ended(supervisor.process, os.waitstatus_to_exitcode(status))
        return bool(ended)

    def ended(self, process: ProcessIdentity, code: int | None) -> None:
        """A supervisor is no more; what that means is remembered, by what it was told up to now."""
        supervisor = next((s for s in self.living.values() if s.process == process), None)
        if supervisor is None:
            return
        del self.living[supervisor.run_dir]
        now = time.monotonic()
        before = self.past.pop(supervisor.run_dir, None)
        known = outcome(
            code,
            supervisor.version,
            before,
            stopped=bool(supervisor.stopping),
            lived=now - supervisor.began,
            now=now,
        )
        if known is not None:
            self.past[supervisor.run_dir] = known
        event = final_state(code) or "ended"
        text = known.text if known else f"stopped, since {supervisor.stopping}"
        if not _busy(before) or code != ExitCode.BUSY:  # which is looked at each minute
            self._tell(event, supervisor.file, text, code=code)
        if code == ExitCode.BUSY:  # by one of ours, perhaps, that we do not know of
            self.adopt()

    def keep_past_of(self, run_dirs: Mapping[str, Any]) -> None:
        """Forget the past of runs that nobody names any more."""
        self.past = {run_dir: past for run_dir, past in self.past.items() if run_dir in run_dirs}

    def _start(self, action: Start) -> None:
        entry, now = action.entry, time.monotonic()
        try:
            process = supervisors.start(self._folder, action, self._gpus, self._logs / f"{entry.file}.log")
        except OSError as error:
            why = f"cannot be started: {error.strerror or error}"
            before = self.past.get(entry.run_dir)
            known = outcome(None, entry.version, before, stopped=False, lived=0.0, now=now)
            if known is not None:
                self.past[entry.run_dir] = replace(known, text=why)
            self._tell("failed", entry.file, why)
            return
        self.living[entry.run_dir] = Supervisor(
            run_dir=entry.run_dir,
            file=entry.file,
            process=process,
            slots=action.slots,
            version=entry.version,
            digest=entry.digest,
            began=now,
            ours=True,
        )
        on = f" on {','.join(action.slots)}" if action.slots else ""
        if not _busy(self.past.get(entry.run_dir)):
            self._tell("started", entry.file, f"process {process.pid}{on} ({action.reason})")


def exit_code_of(supervisor: Supervisor) -> int | None:
    """How a supervisor that was no child of ours ended, by its last words; None where it left none."""
    status = RunDirectory(Path(supervisor.run_dir)).read_status()
    if status is None or status.get("supervisor") != str(supervisor.process):
        return None
    code = status.get("exit_code")
    return code if isinstance(code, int) else None


def _busy(past: Past | None) -> bool:
    """Whether another supervisor had the run when it was last tried."""
    return past is not None and past.code == ExitCode.BUSY


_UNKNOWN = JobState(State.RUNNING, "")
