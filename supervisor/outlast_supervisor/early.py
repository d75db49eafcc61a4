"""Signals that come before anything is loaded: kept in a list until the loop asks for them."""

from __future__ import annotations

import signal
import time
from types import FrameType

pending: list[int] = []
"""Numbers of the signals that came, in the order in which they came."""

HEEDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""What a cluster, a terminal or a limit sends to a supervisor, and to all of its job."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
"""Those that ask a process to end."""
_LOOK = 0.1  # seconds: a signal ends no sleep


def _keep(number: int, _frame: FrameType | None) -> None:
    pending.append(number)


def install() -> None:
    """Keep signals from ending this process while it loads; as PID 1 they would not even arrive otherwise."""
    for number in set(HEEDED) - ignored():
        signal.signal(number, _keep)
    # whoever started us may have them blocked, and exec keeps that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)


def ignored() -> set[signal.Signals]:
    """What whoever started us wants ignored, by nohup or a shell's `&`: that is obeyed."""
    may_be = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    return {number for number in may_be if signal.getsignal(number) is signal.SIG_IGN}


def stop_wanted() -> bool:
    """Whether one of them asks this process to end."""
    return any(number in STOPS for number in pending)


def wait(seconds: float) -> bool:
    """Let time pass before there is a loop; False where a signal wants this process to end before."""
    deadline = time.monotonic() + seconds
    while not stop_wanted():
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, _LOOK))
    return False


def drain() -> list[int]:
    """The signals kept so far, each handed out once."""
    found: list[int] = []
    while pending:
        found.append(pending.pop(0))
    return found
