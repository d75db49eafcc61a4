"""What a save that goes on beside the training costs it: time in which it stood still, and its processors' time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cost:
    """Of one save, in seconds. It begins with the training standing still, at the boundary.

    The training's thread tells when it does so again; each thread that saves tells how much it has worked.
    """

    def __init__(self, trainers: int, since: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``trainers`` threads compute the training; ``since`` is on the clock."""
        self._trainers = trainers
        self._clock = clock
        self._since: float | None = since
        self._stood = 0.0
        self._began: dict[int, float] = {}
        self._worked: dict[int, float] = {}
        self._lock = threading.RLock()  # the training's thread may be told to look while it has it

    def goes_on(self) -> None:
        """The training does, from now on."""
        with self._lock:
            if self._since is not None:
                self._stood += self._clock() - self._since
                self._since = None

    @contextmanager
    def standing(self) -> Iterator[None]:
        """The training stands still for this, unless it does so already. By its own thread alone."""
        if self._since is not None:
            yield
            return
        with self._lock:
            self._since = self._clock()
        try:
            yield
        finally:
            self.goes_on()

    def begins_work(self) -> None:
        """What the calling thread did before was not for this save."""
        self._began[threading.get_native_id()] = time.thread_time()

    def works(self) -> None:
        """The calling thread has worked until now for this save, from its own beginning or `begins_work` on."""
        me = threading.get_native_id()  # the other number may be that of a thread that has ended
        self._worked[me] = time.thread_time() - self._began.get(me, 0.0)

    def seconds(self) -> float:
        """Up to now."""
        with self._lock:
            stood = self._stood + (0.0 if self._since is None else self._clock() - self._since)
        worked = list(self._worked.values())
        busiest = max(worked, default=0.0)
        savers = sum(worked) / busiest if busiest > 0 else 0.0  # one that waits for the disk is hardly one
        return stood + delay(sum(worked), savers, self._trainers, len(os.sched_getaffinity(0)))


def delay(worked: float, savers: float, trainers: int, cores: int) -> float:
    """Seconds by which a training falls behind while savers use ``worked`` seconds of processor time beside it.

    Each of ``cores`` is shared evenly by the threads that want it. As many savers as there are idle cores take
    nothing from the training; what the others use is missing on the cores that it runs on.
    """
    if savers <= 0 or cores <= 0:
        return 0.0
    crowded = min(max(savers + trainers - cores, 0), savers)
    return worked * crowded / savers / cores
