"""Saving threads give way to the training, and do not starve."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from outlast_worker import yielding
from outlast_worker.yielding import Yielding


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_thread(work: Callable[[], None]) -> None:
    """By a thread whose niceness and processors are its own."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def can_be_taken_back() -> None:
    if nice() or not yielding._may_rise():
        pytest.skip("niceness can't be taken back here")


@pytest.mark.parametrize(
    ("cores", "trainers", "savers"), [(2, 1, 1), (2, 2, 1), (8, 2, 6), (8, 8, 1), (4, 32, 1), (64, 1, 63)]
)
def test_a_save_beside_a_training_takes_none_of_its_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, trainers: int, savers: int
) -> None:
    """As many threads save as the training leaves cores idle, and one where it leaves none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert yielding.beside(trainers) == savers


def test_a_thread_gives_way_with_those_it_starts_while_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Niced however long it takes, with the threads that it starts; at the end as before."""
    found: list[int] = []
    crew = Yielding()

    def work() -> None:
        crew.begin()
        found.append(nice())
        crew._until = 0
        inner = threading.Thread(target=also)
        inner.start()
        inner.join()
        crew.look()
        found.append(nice())
        crew.end()
        found.append(nice())

    def also() -> None:
        crew.look()
        found.append(nice())

    monkeypatch.setattr(yielding, "waited", lambda: 5.0)
    in_thread(work)
    assert found == [19, 19, 19, 0]
    assert nice() == 0


def test_a_thread_that_gets_no_processor_goes_on_as_anybody() -> None:
    """Beside a process that never rests, on one processor: niced at first, and not when it has waited long."""
    if yielding.waited() is None:
        pytest.skip("this kernel does not count how long a thread waits")
    core = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    found: list[int] = []
    crew = Yielding()

    def work() -> None:
        os.sched_setaffinity(0, {core})
        crew.begin()
        found.append(nice())
        give_up = time.monotonic() + 60
        while nice() and time.monotonic() < give_up:
            crew.look()
        found.append(nice())

    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            in_thread(work)
        finally:
            other.kill()
    assert found == [19, 0]


def test_where_nothing_is_counted_a_time_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Niced until the stated time is over, where the kernel does not tell how long a thread waited."""
    found: list[int] = []
    crew = Yielding()

    def work() -> None:
        crew.begin()
        found.append(nice())
        crew._until = 0
        crew.look()
        found.append(nice())

    monkeypatch.setattr(yielding, "waited", lambda: None)
    in_thread(work)
    assert found == [19, 0]


def test_where_niceness_can_not_be_taken_back_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """To rise again takes a right, which most users don't have."""
    found: list[int] = []
    crew = Yielding()

    def work() -> None:
        crew.begin()
        found.append(nice())
        crew.end()

    monkeypatch.setattr(yielding, "_may_rise", lambda: False)
    in_thread(work)
    assert found == [0]
