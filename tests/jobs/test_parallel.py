"""Several files at once: the outcome is that of one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.shortage import no_more_threads

from outlast_jobs.errors import Cancelled
from outlast_jobs.parallel import each, readers


def test_results_keep_the_order_of_the_items() -> None:
    """Whatever thread did which, the results are in the order of the items."""
    barrier = threading.Barrier(2)

    def work(item: int, gave_up: Callable[[], bool]) -> int:
        if item < 2:
            barrier.wait(30)  # two threads at least are at it
        return item * item

    assert each(work, range(20), 4) == [n * n for n in range(20)]
    assert each(work, [5], 4) == [25]
    assert each(work, [], 4) == []
    assert readers() >= 2


def test_the_first_bad_item_is_the_one_that_is_told() -> None:
    """Of several failures that of the first item in order is raised, though a later one came first."""
    later_failed = threading.Event()

    def work(item: int, gave_up: Callable[[], bool]) -> int:
        if item == 1:
            later_failed.set()
            raise ValueError("the later one")
        later_failed.wait(30)
        raise ValueError("the first one")

    with pytest.raises(ValueError, match="the first one"):
        each(work, [0, 1], 2)


def test_what_comes_after_a_bad_item_is_given_up() -> None:
    """After a failure no further item is begun, and those under way behind it are told to stop."""
    begun, stopped = [], []
    under_way = threading.Event()

    def work(item: int, gave_up: Callable[[], bool]) -> int:
        begun.append(item)
        if item == 0:
            under_way.wait(30)
            raise ValueError("bad")
        under_way.set()
        deadline = threading.Event()
        while not gave_up():
            deadline.wait(0.001)
        stopped.append(item)
        raise Cancelled("not needed")

    with pytest.raises(ValueError, match="bad"):
        each(work, range(50), 2)
    assert stopped == [1]
    assert sorted(begun) == [0, 1]


def test_an_end_asked_for_by_the_caller_is_no_failure_of_a_later_item() -> None:
    """A Cancelled that no earlier failure caused is the caller's own, and is raised."""

    def work(item: int, gave_up: Callable[[], bool]) -> int:
        raise Cancelled("told to stop")

    with pytest.raises(Cancelled, match="told to stop"):
        each(work, [1, 2, 3], 3)


def test_without_more_threads_all_is_done_by_one() -> None:
    """Where no thread is to be had the results are the same, by the calling thread alone."""
    with no_more_threads():
        assert each(lambda item, gave_up: (item, threading.get_ident()), range(5), 4) == [
            (n, threading.get_ident()) for n in range(5)
        ]
