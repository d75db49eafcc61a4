"""Put together what the worker is given: command, environment, log, and the chosen generation."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import time

from msgspec import Struct, field

from outlast_jobs import restart
from outlast_jobs.cadence import SavePolicy
from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.jobfile import Job, Signals
from outlast_jobs.locks import hold_shared
from outlast_jobs.memory import available
from outlast_jobs.rundir import RunDirectory

from . import spawn
from .events import Chosen
from .policy import Policy

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Opened(Struct, frozen=True):
    """The files of an attempt that is about to be started."""

    attempt: int
    chosen: Chosen
    log_fd: int
    alive_fd: int
    told: str  # what is wrong with them, or empty
    free: int | None = None  # bytes of memory that can be had, where somebody asked

    def close(self) -> None:
        """Give them up, which on a network file system may wait: the worker has its own by now, or never will."""
        os.close(self.log_fd)
        os.close(self.alive_fd)


class Launcher(Struct):
    """Launches the worker of a job; the job is replaced when its file is read again."""

    run: RunDirectory
    run_id: str
    job: Job
    config_sha256: str
    allow_rng_loss: bool
    extra: tuple[str, ...] = ()  # arguments that the command line appended to the job's command
    forced: str | None = None  # the generation named with --from, for one start
    # those that the running worker was told of; a reload changes the next one's
    signals: Signals | None = None
    deadline: float | None = None  # on the monotonic clock
    in_slurm: bool = False  # its job section counts where it says the same as another
    _base: dict[str, str] = field(default_factory=dict)
    _made_for: Job | None = None
    _me: str = field(default_factory=lambda: str(ProcessIdentity.current()))

    def signal_of(self, role: str) -> int:
        """The signal that the job file gives a role."""
        signals = self.signals or self.job.signals
        names = {"save": signals.save, "stop": signals.stop, "stacks": signals.stacks}
        return signal.Signals[names[role]].value

    def every_seconds(self) -> float | None:
        """The cadence in seconds; where the job says auto the longest one, and earlier saves are asked for."""
        return self.job.save.between[1] if self.job.save.auto else self.job.save.every_seconds

    def open(self, attempt: int, chosen: Chosen, cause: str, ask_memory: bool = False) -> Opened:
        """What a worker needs of the run directory; from a helper, since its file system may hang."""
        told, free = "", available() if ask_memory else None
        for path in (self.job.workdir, self.job.command[0]):  # what the fork waits for is waited for here
            with contextlib.suppress(OSError):
                os.stat(os.path.join(self.job.workdir, path))
        try:
            log_fd = spawn.open_log(self.run.attempt_log(attempt), self._header(attempt, chosen, cause))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            told = f"attempt {attempt} has no log: {error.strerror}"
            log_fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return Opened(attempt, chosen, log_fd, hold_shared(self.run), told, free)
        except BaseException:
            os.close(log_fd)
            raise

    def order(
        self,
        opened: Opened,
        socket_path: str,
        start_at: float = 0.0,
        buffer: tuple[int, int] | None = None,
        tight: bool = False,
    ) -> spawn.Order:
        """What the worker of this attempt is to be; from now on it is the one whose signals count.

        It is not executed before ``start_at``, in monotonic seconds. ``buffer`` is the descriptor and the inode of
        what the attempt before has left in memory. Where that is ``tight`` the worker takes none for copies.
        """
        job, attempt = self.job, opened.attempt
        self.signals = job.signals
        self.forced = None
        ours = self._ours(attempt, opened.chosen, socket_path)
        if buffer is not None:
            ours[Env.BUFFER] = f"{buffer[0]}:{buffer[1]}"
        if tight:
            ours[Env.NO_COPY] = "1"
        return spawn.Order(
            command=self._command(opened.chosen),
            workdir=job.workdir,
            env={**self._environment(), **ours},
            log=self.run.attempt_log(attempt),
            header="",
            alive_fd=opened.alive_fd,
            blocked=spawn.blocked_signals(job.signals.mode, job.signals.save),
            death=self.signal_of("stop"),
            start_at=start_at,
            buffer_fd=buffer[0] if buffer is not None else -1,
        )

    def _command(self, chosen: Chosen) -> tuple[str, ...]:
        """The job's; a script that resumes by itself is told from where."""
        if self.job.adopt is None or chosen.path is None:
            return self.job.command
        from outlast_jobs.adopted import resume_words

        return (*self.job.command, *resume_words(self.job.adopt.resume, chosen.path))

    def _environment(self) -> dict[str, str]:
        """What does not change from attempt to attempt: it is put together once for a job."""
        if self._made_for is not self.job:
            self._base = spawn.worker_environment(os.environ, self.job.env, {})
            self._made_for = self.job
        return self._base

    def _ours(self, attempt: int, chosen: Chosen, socket_path: str) -> dict[str, str]:
        path = self.run.path.absolute()
        signals = self.job.signals
        env = {
            Env.RUN: str(path),
            Env.RUN_ID: self.run_id,
            Env.ATTEMPT: str(attempt),
            Env.CHECKPOINTS: str(path / "checkpoints"),
            Env.SUPERVISOR: self._me,
            Env.SIGNAL_SAVE: signals.save,
            Env.SIGNAL_STOP: signals.stop,
            Env.SIGNAL_STACKS: signals.stacks,
            Env.IDENTITY: self.job.identity,
            Env.CONFIG_SHA256: self.config_sha256,
            Env.NOTIFY_SOCKET: socket_path,
        }
        seconds = self.every_seconds()
        left = None if self.deadline is None else self.deadline - time.monotonic()
        optional = {
            Env.RESUME: chosen.path if self.job.adopt is None else None,
            Env.SAVE_EVERY_STEPS: self.job.save.every_steps,
            Env.SAVE_EVERY_SECONDS: seconds,
            Env.LINK_UNCHANGED: "1" if self.job.save.link_unchanged else None,
            Env.DEADLINE: None if left is None else time.time() + left,
            Env.ALLOW_RNG_LOSS: "1" if self.allow_rng_loss else None,
        }
        if Env.DRILL in os.environ:
            optional |= {name: os.environ.get(name) for name in (Env.DRILL, Env.RECORD, Env.STOP_AT)}
        env.update({name: str(value) for name, value in optional.items() if value is not None})
        return env

    def _header(self, attempt: int, chosen: Chosen, cause: str) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        start = f"resumes from {chosen.name}" if chosen.name else "starts at step 0"
        told = f"cause: {' '.join(cause.split())}; {shlex.join(self._command(chosen))}"
        one_line = " ".join(told.splitlines())  # a program given to `python -c` has several
        return f"--- outlast: attempt {attempt} on {hostname()} at {when}: {start}; {one_line}"


def policy_of(job: Job, launcher: Launcher) -> Policy:
    """What the state table needs of a job."""
    return Policy(
        restart=restart.Policy.of(job.restart, job.sick),
        save=SavePolicy(job.save.every_steps, launcher.every_seconds()),
        between=job.save.between if job.save.auto else None,
        grace=job.stop.grace,
        warn=job.slurm.warn if launcher.in_slurm and job.slurm is not None else job.stop.warn,
        on_usr1=job.stop.on_usr1,
        hang_min=job.hang.min,
        audit=job.audit,
        shielded=(launcher.signals or job.signals).mode == "outlast",
    )


def told(error: BaseException | None, program: str) -> str:
    """Why a program, or what it needs, could not be had."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or program}"
    return f"{error}: {program}"
