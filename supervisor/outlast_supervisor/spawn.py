"""Launch a worker: its own session, clean signals, its own log descriptor, its parent's death as a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from outlast_jobs.beneath import open_append
from outlast_jobs.contract import OURS
from outlast_jobs.identity import ProcessIdentity

from . import linux, sdnotify

FORK_AHEAD = 0.01  # seconds before that instant at which it is forked; what is left of them is waited for

# what systemd says to the supervisor alone, where a hook of another run starts us, and a daemon's own mark
_NOT_INHERITED = (
    *sdnotify.MINE,
    "OUTLAST_HOOK",
    "OUTLAST_HOOK_OF",
    "OUTLAST_REASON",
    "OUTLAST_DAEMON",  # by which a daemon knows its supervisors
)


class Order(Struct, frozen=True):
    """What is to be launched, and how."""

    command: Sequence[str]
    workdir: str
    env: Mapping[str, str]
    log: Path
    header: str
    alive_fd: int
    blocked: frozenset[int]  # signals that stay blocked across exec until the library unblocks them
    death: int = signal.SIGTERM  # what the worker is sent when its supervisor dies: the job's stop signal
    buffer_fd: int = -1  # memory of the attempt before, which the worker inherits
    start_at: float = 0.0  # monotonic seconds before which it is not executed: the end of a backoff

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that the worker has beside its log."""
        return (self.alive_fd,) if self.buffer_fd < 0 else (self.alive_fd, self.buffer_fd)


def worker_environment(
    base: Mapping[str, str], job_env: Mapping[str, str], ours: Mapping[str, str]
) -> dict[str, str]:
    """The worker's environment: the caller's, then the job's, then ours, which nobody can override."""
    env = {k: v for k, v in base.items() if k not in _NOT_INHERITED and k not in OURS}
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update(job_env)
    env.update(ours)
    return env


def open_log(path: Path, header: str) -> int:
    """The worker's own descriptor of its log, with its header written; OSError where it cannot be opened.

    The log lies in a folder of the run directory: no link on the way is followed, no pipe is waited for.
    """
    fd = open_append(path.parent.parent, path)
    with contextlib.suppress(OSError):  # on a full disk the header is missing, and the run goes on
        os.write(fd, header.encode(errors="replace") + b"\n")
    return fd


def by_shell(words: Sequence[str]) -> list[str]:
    """A command by way of a shell: Popen waits for the exec, in which a program on a cluster's file system may hang."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *words]


def launch(order: Order, log_fd: int | None = None) -> ProcessIdentity:
    """Start the worker and return its identity; ``log_fd`` is its log where that is open already.

    Must be called from the main thread: the parent-death signal fires when the forking *thread* ends.
    Raises OSError where the log cannot be opened or the command cannot be executed.
    """
    opened = open_log(order.log, order.header) if log_fd is None else log_fd
    # until exec the child has our handlers, and what they note would reach us as a signal of our own
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        supervisor = os.getpid()
        # exec gives back what is handled, but not what is ignored (as under nohup, or `trap '' USR1; exec`)
        ignored = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}

        def prepare() -> None:
            signal.set_wakeup_fd(-1)
            for number in {*ignored, order.death}:
                signal.signal(number, signal.SIG_DFL)
            linux.set_parent_death_signal(order.death)
            if os.getppid() != supervisor:  # it died between fork and prctl, so no signal will come
                os._exit(signal.SIGTERM + 128)
            # forked ahead, executed at its time; what its supervisor's death sends is blocked, and comes then
            time.sleep(min(FORK_AHEAD, max(0.0, order.start_at - time.monotonic())))
            signal.pthread_sigmask(signal.SIG_SETMASK, order.blocked)

        # the bytes of what was printed before must not be printed again by a child that fails to exec
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        child = subprocess.Popen(
            list(order.command),
            cwd=order.workdir,
            env=dict(order.env),
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            start_new_session=True,
            pass_fds=order.inherited,
            preexec_fn=prepare,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if log_fd is None:
            os.close(opened)
    child.returncode = 0  # the loop reaps every child itself; Popen must not wait for it again
    return ProcessIdentity.of_child(child.pid)


def standby(
    words: Sequence[str], workdir: str, env: Mapping[str, str], output: int, channel: int
) -> subprocess.Popen[bytes]:
    """Start a process that waits with all signals blocked; nothing but KILL ends it, as does our own end.

    From the main thread, as ``launch``. What it prints goes to ``output``; ``channel`` keeps its number.
    """
    supervisor = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def prepare() -> None:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)

    try:
        process = subprocess.Popen(
            by_shell(words),
            cwd=workdir,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(channel,),
            preexec_fn=prepare,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process.returncode = 0  # the loop reaps every child itself
    return process


def blocked_signals(mode: str, save_signal: str) -> frozenset[int]:
    """What is blocked across exec: the save signal, whose default action is death, or nothing."""
    return frozenset({signal.Signals[save_signal].value}) if mode == "outlast" else frozenset()
