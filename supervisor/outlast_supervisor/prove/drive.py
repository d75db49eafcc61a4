"""Launch legs in scratch run directories, side by side, and wait until each has ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast_jobs.claim import claim
from outlast_jobs.contract import Env, Field
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job, command_digest
from outlast_jobs.locks import hold_shared
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.verify import Verdict, look, scan
from outlast_supervisor import linux, processes, spawn
from outlast_supervisor.notify import NotifySocket

from .model import Ended, Leg
from .tracks import read_track

_TAIL = 4000  # bytes of a log that are looked at when its leg failed
_OWN = ("run.json", "lock", "alive", "journal", "requests", "logs", "metrics", ".writing-*", ".trash-*")
_LOOK = 1.0  # seconds between two looks at the clock

Told = Callable[[Leg, int | None], None]
"""Called with each step that a leg reports, and with None when it begins."""


class NoGeneration(RuntimeError):
    """The leg before left nothing to resume from."""


@dataclass
class _Live:
    leg: Leg
    run: RunDirectory
    run_id: str
    worker: ProcessIdentity
    pidfd: int
    socket: NotifySocket
    began: float
    heard: float
    failure: Mapping[str, object] | None = None
    refused: str = ""
    timed_out: bool = False


@dataclass
class Driver:
    """Runs legs of one job below a folder; ``patience`` is how long one may be silent."""

    job: Job
    work: Path
    side_by_side: int
    patience: float
    told: Told
    over: Callable[[Leg], None]
    ended: dict[str, Ended] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._selector = selectors.DefaultSelector()

    def run_directory(self, leg: Leg) -> RunDirectory:
        """Where a leg's run lies."""
        return RunDirectory(self.work / leg.run)

    def run(self, legs: Iterable[Leg]) -> None:
        """Carry out these legs, each after the one that it resumes from, so many at a time."""
        waiting = list(legs)
        try:
            while waiting or self._live:
                self._start_what_can(waiting)
                if self._live:
                    self._wait()
        finally:
            self._end_all()

    # --- inside ---

    def _start_what_can(self, waiting: list[Leg]) -> None:
        for leg in list(waiting):
            if len(self._live) >= self.side_by_side:
                return
            if leg.fresh or leg.resume in self.ended:
                waiting.remove(leg)
                self._start(leg)

    def _start(self, leg: Leg) -> None:
        self.told(leg, None)
        began = time.monotonic()
        try:
            self._live[leg.name] = self._launch(leg, began)
        except (OSError, ValueError, NoGeneration) as error:
            self.ended[leg.name] = Ended(leg, not_started=f"could not be started: {error}")
            self.over(leg)

    def _launch(self, leg: Leg, began: float) -> _Live:
        run = self.run_directory(leg)
        resume = self._resume(leg)
        if resume is not None and not leg.fresh and resume == self.ended[leg.resume].files:
            if leg.attempt == 1:  # in a run of its own it needs what the run before had saved
                shutil.copytree(resume, run.path, dirs_exist_ok=True)
            resume = None
        run_id = run.create().run.run_id
        claim(run.checkpoints, leg.attempt)
        socket = NotifySocket()
        alive = hold_shared(run)
        signals = self.job.signals
        try:
            worker = spawn.launch(
                spawn.Order(
                    command=self.job.command,
                    workdir=self.job.workdir,
                    env=spawn.worker_environment(
                        os.environ, self.job.env, self._ours(leg, run, run_id, resume, socket.path)
                    ),
                    log=run.attempt_log(leg.attempt),
                    header=f"--- outlast prove: {leg.name}",
                    alive_fd=alive,
                    blocked=spawn.blocked_signals(signals.mode, signals.save),
                )
            )
        except BaseException:
            socket.close()
            raise
        finally:
            os.close(alive)
        pidfd = linux.pidfd_open(worker.pid)
        live = _Live(leg, run, run_id, worker, pidfd, socket, began, time.monotonic())
        self._selector.register(pidfd, selectors.EVENT_READ, (live, "ended"))
        self._selector.register(socket, selectors.EVENT_READ, (live, "said"))
        return live

    def _resume(self, leg: Leg) -> Path | None:
        if leg.fresh:
            return Path(self.job.start_from) if self.job.start_from else None
        before = self.ended[leg.resume]
        if before.files is not None:
            return before.files
        if before.generation is None:
            raise NoGeneration(f'"{before.leg.name}" left no generation: {before.said}')
        finding = look(before.generation, None, full=True)
        if finding.verdict is not Verdict.VERIFIED:
            raise NoGeneration(
                f'"{before.leg.name}" left a generation that is {finding.verdict}: {finding.reason}'
            )
        return before.generation

    def _ours(
        self, leg: Leg, run: RunDirectory, run_id: str, resume: Path | None, socket: str
    ) -> dict[str, str]:
        path, signals = run.path.absolute(), self.job.signals
        optional = {
            Env.RESUME: resume.absolute() if resume is not None else None,
            Env.SAVE_EVERY_STEPS: leg.every_steps,
            Env.STOP_AT: leg.stop_at,
            Env.CUT: leg.cut or None,
            Env.LEAVE_OUT: leg.leave_out or None,
        }
        return {
            Env.RUN: str(path),
            Env.RUN_ID: run_id,
            Env.ATTEMPT: str(leg.attempt),
            Env.CHECKPOINTS: str(path / "checkpoints"),
            Env.SUPERVISOR: str(ProcessIdentity.current()),
            Env.SIGNAL_SAVE: signals.save,
            Env.SIGNAL_STOP: signals.stop,
            Env.SIGNAL_STACKS: signals.stacks,
            Env.IDENTITY: "warn",
            Env.CONFIG_SHA256: command_digest(self.job),
            Env.NOTIFY_SOCKET: socket,
            Env.RECORD: "proof",
            "OUTLAST_RECORD_IDS": "1",
            **{name: str(value) for name, value in optional.items() if value is not None},
            **leg.env,
        }

    def _wait(self) -> None:
        for key, _ in self._selector.select(_LOOK):
            live, what = key.data
            if what == "said":
                self._hear(live)
            elif live.leg.name in self._live:
                self._finish(live)
        now = time.monotonic()
        for live in list(self._live.values()):
            if now - live.heard > self.patience and not live.timed_out:
                live.timed_out = True
                processes.send(live.worker, signal.SIGKILL)
                processes.end(processes.of_run(live.run_id), "kill", spare_shielded=False)

    def _hear(self, live: _Live) -> None:
        for message in live.socket.receive():
            live.heard = time.monotonic()
            fields = message.fields
            with contextlib.suppress(ValueError, TypeError):
                if Field.FAILURE in fields:
                    found = json.loads(fields[Field.FAILURE])
                    live.failure = found if isinstance(found, dict) else None
                if Field.STEP in fields:
                    self.told(live.leg, int(fields[Field.STEP]))
            live.refused = fields.get(Field.REFUSED) or fields.get(Field.BAD) or live.refused

    def _finish(self, live: _Live) -> None:
        self._hear(live)
        _, status = os.waitpid(live.worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._forget(live)
        track = read_track(live.run.attempt_metrics(live.leg.attempt))
        keep = live.leg.cut and track.files and track.steps
        self.ended[live.leg.name] = Ended(
            live.leg,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            failure=live.failure,
            refused=live.refused,
            timed_out=live.timed_out,
            tail=_tail(live.run.attempt_log(live.leg.attempt)),
            generation=next(iter(scan(live.run.checkpoints)), None),
            files=_copied(live.run.path, self.work / f".{live.leg.run}") if keep else None,
            seconds=time.monotonic() - live.began,
        )
        self.over(live.leg)

    def _forget(self, live: _Live) -> None:
        del self._live[live.leg.name]
        self._selector.unregister(live.pidfd)
        self._selector.unregister(live.socket)
        os.close(live.pidfd)
        live.socket.close()
        # Loader processes of a killed trainer, and whatever else it started, must not disturb the next leg.
        processes.end(processes.of_run(live.run_id), "kill", spare_shielded=False)

    def _end_all(self) -> None:
        """Nothing that we launched outlives us, whatever made us stop."""
        for live in list(self._live.values()):
            processes.send(live.worker, signal.SIGKILL)
            os.waitpid(live.worker.pid, 0)
            self._forget(live)


def ended_as_cut(ended: Ended) -> bool:
    """Whether a leg that was to be cut ended as it should: saved and left, or killed."""
    return ended.code == 75 or ended.signal == signal.SIGKILL or ended.code == 128 + signal.SIGKILL


def _copied(run: Path, to: Path) -> Path:
    """What a job saved in its run directory, as it is now; what is the run's own is left out."""
    own = shutil.ignore_patterns(*_OWN)
    shutil.copytree(run, to, symlinks=True, ignore=own)
    return to


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        return file.read().decode(errors="replace")
    return ""
