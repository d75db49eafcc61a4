"""Signals that come before anything is loaded: kept in a list until the loop asks for them."""

from __future__ import annotations

import signal
from types import FrameType

pending: list[int] = []
"""Numbers of the signals that came, in the order in which they came."""

_KEPT = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # nohup, and a shell's `&`, ask for that


def _keep(number: int, _frame: FrameType | None) -> None:
    pending.append(number)


def install() -> None:
    """Keep signals from ending this process while it loads; as PID 1 they would not even arrive otherwise."""
    for number in _KEPT:
        if number in _MAY_BE_IGNORED and signal.getsignal(number) is signal.SIG_IGN:
            continue
        signal.signal(number, _keep)


def drain() -> list[int]:
    """The signals kept so far, each handed out once."""
    found: list[int] = []
    while pending:
        found.append(pending.pop(0))
    return found
