"""Do the same to several files at once, with an outcome that does not hang on who was first."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from outlast_jobs.errors import Cancelled

Item = TypeVar("Item")
Found = TypeVar("Found")

MOST_THREADS = 8
"""More do not make a hash or a disk faster, and each has a buffer."""


def readers() -> int:
    """How many threads may read and hash: two for each processor that we may use.

    Two, since a disk is waited for, and since files of unequal sizes share the processors evenly that way.
    """
    return min(MOST_THREADS, 2 * len(os.sched_getaffinity(0)))


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """A daemonic thread that does this; None where the system gives us no more (``ulimit -u``, a pids.max)."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def each(
    work: Callable[[Item, Callable[[], bool]], Found], items: Sequence[Item], threads: int
) -> list[Found]:
    """The results of ``work`` on every item, in the order of the items.

    ``work`` gets a second argument, to be asked now and then: True means that its result is of no use any
    more, and that it may raise Cancelled. Where some fail, the error of the first item in order is raised, as
    if they had been done one after another. Priorities and nice values are those of the caller.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item, lambda: False) for item in items]
    crew = _Crew(work, items)
    helpers: list[threading.Thread] = []
    while len(helpers) < min(threads, len(items)) - 1:
        helper = start_thread(crew.labour, "outlast-read")
        if helper is None:
            break  # with fewer of them it takes longer
        helpers.append(helper)
    try:
        crew.labour()
    except BaseException:
        crew.failed_at = -1
        raise
    finally:
        for helper in helpers:
            helper.join()
    if crew.errors:
        raise crew.errors[min(crew.errors)]
    return [crew.found[number] for number in range(len(items))]


class _Crew(Generic[Item, Found]):
    def __init__(self, work: Callable[[Item, Callable[[], bool]], Found], items: Sequence[Item]) -> None:
        self._work = work
        self._items = items
        self._lock = threading.Lock()
        self._next = 0
        self.found: dict[int, Found] = {}
        self.errors: dict[int, Exception] = {}
        self.failed_at = len(items)  # of the items from here on nothing is needed any more

    def labour(self) -> None:
        while (number := self._take()) is not None:
            try:
                found = self._work(self._items[number], functools.partial(self._gave_up, number))
            except Cancelled as error:
                self._failed(number, error, heard=number > self.failed_at)
            except Exception as error:
                self._failed(number, error)
            else:
                with self._lock:
                    self.found[number] = found

    def _gave_up(self, number: int) -> bool:
        return number > self.failed_at

    def _take(self) -> int | None:
        with self._lock:
            number = self._next
            if number >= min(len(self._items), self.failed_at):
                return None
            self._next += 1
            return number

    def _failed(self, number: int, error: Exception, *, heard: bool = False) -> None:
        with self._lock:
            if not heard:
                self.errors[number] = error
                self.failed_at = min(self.failed_at, number)
