"""Put together what the worker is given: command, environment, log, and the chosen generation."""

from __future__ import annotations

import os
import shlex
import signal
import time
from dataclasses import dataclass

from outlast_jobs import cadence, restart
from outlast_jobs.cadence import SavePolicy
from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.jobfile import Job, Signals
from outlast_jobs.locks import hold_shared
from outlast_jobs.rundir import RunDirectory

from . import spawn
from .events import Chosen
from .policy import Policy


@dataclass
class Launcher:
    """Launches the worker of a job; the job is replaced when its file is read again."""

    run: RunDirectory
    run_id: str
    job: Job
    config_sha256: str
    allow_rng_loss: bool
    extra: tuple[str, ...] = ()  # arguments that the command line appended to the job's command
    forced: str | None = None  # the generation named with --from, for one start
    signals: Signals | None = (
        None  # those that the running worker was told of; a reload changes the next one's
    )
    deadline: float | None = None  # unix seconds
    save_seconds: float | None = None  # measured cost of a save
    mean_up_seconds: float | None = None  # measured time from start to failure

    def take_forced(self) -> str | None:
        """The generation that a person named; it counts for one start."""
        forced, self.forced = self.forced, None
        return forced

    def signal_of(self, role: str) -> int:
        """The signal that the job file gives a role."""
        signals = self.signals or self.job.signals
        names = {"save": signals.save, "stop": signals.stop, "stacks": signals.stacks}
        return signal.Signals[names[role]].value

    def every_seconds(self) -> float | None:
        """The cadence in seconds; measured where the job says auto."""
        if self.job.save.auto:
            return cadence.auto_interval(self.save_seconds, self.mean_up_seconds, self.job.save.between)
        return self.job.save.every_seconds

    def launch(self, attempt: int, chosen: Chosen, cause: str, socket_path: str) -> ProcessIdentity:
        """Start the worker; OSError where it cannot be."""
        job = self.job
        self.signals = job.signals
        alive_fd = hold_shared(self.run, inheritable=False)
        try:
            return spawn.launch(
                spawn.Order(
                    command=job.command,
                    workdir=job.workdir,
                    env=spawn.worker_environment(
                        os.environ, job.env, self._ours(attempt, chosen, socket_path)
                    ),
                    log=self.run.attempt_log(attempt),
                    header=self._header(attempt, chosen, cause),
                    alive_fd=alive_fd,
                    blocked=spawn.blocked_signals(job.signals.mode, job.signals.save),
                )
            )
        finally:
            os.close(alive_fd)

    def _ours(self, attempt: int, chosen: Chosen, socket_path: str) -> dict[str, str]:
        path = self.run.path.absolute()
        signals = self.job.signals
        env = {
            Env.RUN: str(path),
            Env.RUN_ID: self.run_id,
            Env.ATTEMPT: str(attempt),
            Env.CHECKPOINTS: str(path / "checkpoints"),
            Env.SUPERVISOR: str(ProcessIdentity.current()),
            Env.SIGNAL_SAVE: signals.save,
            Env.SIGNAL_STOP: signals.stop,
            Env.SIGNAL_STACKS: signals.stacks,
            Env.IDENTITY: self.job.identity,
            Env.CONFIG_SHA256: self.config_sha256,
            Env.NOTIFY_SOCKET: socket_path,
        }
        seconds = self.every_seconds()
        optional = {
            Env.RESUME: chosen.path,
            Env.SAVE_EVERY_STEPS: self.job.save.every_steps,
            Env.SAVE_EVERY_SECONDS: seconds,
            Env.DEADLINE: self.deadline,
            Env.ALLOW_RNG_LOSS: "1" if self.allow_rng_loss else None,
        }
        env.update({name: str(value) for name, value in optional.items() if value is not None})
        return env

    def _header(self, attempt: int, chosen: Chosen, cause: str) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        start = f"resumes from {chosen.name}" if chosen.name else "starts at step 0"
        command = shlex.join(self.job.command)
        one_line = " ".join(cause.split())
        return (
            f"--- outlast: attempt {attempt} on {hostname()} at {when}: {start}; cause: {one_line}; {command}"
        )


def policy_of(job: Job, launcher: Launcher) -> Policy:
    """What the state table needs of a job."""
    return Policy(
        restart=restart.Policy.of(job.restart, job.sick),
        save=SavePolicy(job.save.every_steps, launcher.every_seconds()),
        grace=job.stop.grace,
        warn=job.stop.warn,
        on_usr1=job.stop.on_usr1,
        hang_min=job.hang.min,
        audit=job.audit,
        shielded=job.signals.mode == "outlast",
    )
