"""Threads that give way to the training, as long as they get anywhere."""

from __future__ import annotations

import os
import threading
import time

STARVED_FOR = 0.1
"""Seconds for which a thread that gives way may wait for a processor; then it goes on as anybody."""
YIELDS_FOR = 0.1
"""Seconds for which it gives way where the system does not tell how long it waited."""

_NICE = 19


def beside(trainers: int) -> int:
    """How many threads may save beside so many that train, and take no core from them; one at the least.

    One more than there are cores costs the training more than its share: it waits now here, now there.
    """
    return max(len(os.sched_getaffinity(0)) - trainers, 1)


class Yielding:
    """The saving threads of one save. Each of them calls `look` from time to time.

    While a processor is idle, giving way costs nothing. Where none is, a niced thread hardly gets on at all.
    """

    def __init__(self) -> None:
        self._on = False
        self._until = 0.0
        self._mine = threading.local()  # its threads are told apart by what they have been told

    def begin(self) -> None:
        """From now on, and in this thread."""
        self._on = True
        self._until = time.monotonic() + YIELDS_FOR
        self.look()

    def end(self) -> None:
        """No longer, in this thread: it will copy the next state."""
        self._on = False
        self.look()

    def look(self) -> None:
        """Give way, or no longer. Only where that can be taken back: to rise again takes a right."""
        lowered = getattr(self._mine, "lowered", None)
        if lowered is None:  # a thread inherits the niceness of the one that starts it
            lowered = self._mine.lowered = os.getpriority(os.PRIO_PROCESS, 0) == _NICE
            self._mine.waited = waited()
        if self._on and not self._starved():
            if not lowered and _may_rise():
                self._mine.lowered = _set_nice(_NICE)
                self._mine.waited = waited()
        elif lowered:
            self._on = False  # and so for the others: what holds one up holds all up
            self._mine.lowered = not _set_nice(0)

    def _starved(self) -> bool:
        since = self._mine.waited
        now = waited() if since is not None else None
        return time.monotonic() >= self._until if now is None else now - since >= STARVED_FOR


def waited() -> float | None:
    """Seconds that this thread could have run and got no processor so far; None where the kernel does not count.

    The second field of ``schedstat``, in nanoseconds (the kernel's document sched-stats).
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _may_rise() -> bool:
    """Whether niceness can be taken back here. Where not, the attempt costs one step of it."""
    return os.getpriority(os.PRIO_PROCESS, 0) == 0 and _set_nice(1) and _set_nice(0)


def _set_nice(value: int) -> bool:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), value)
    except OSError:
        return False
    return True
