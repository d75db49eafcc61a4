"""What a save beside the training costs: each second for which the training stands still once, and its cores' share."""

from __future__ import annotations

import os
import threading
import time

import pytest

from outlast_worker.cost import Cost, delay


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("savers", "trainers", "cores", "share"),
    [
        (1, 1, 2, 0),  # each has a core
        (2, 6, 8, 0),
        (1, 1, 1, 1),  # what the one does the other waits for
        (1, 2, 2, 1 / 2),
        (2, 2, 2, 1 / 2),
        (2, 1, 2, 1 / 4),  # three on two cores: one saver has the idle one, half of their work is missed
        (2, 8, 8, 1 / 8),
        (4, 6, 8, 1 / 16),
        (0, 2, 2, 0),
    ],
)
def test_savers_take_from_the_training_what_no_idle_core_gives(
    savers: int, trainers: int, cores: int, share: float
) -> None:
    """With cores that are shared evenly, the training falls behind by this part of what the savers work."""
    assert delay(8.0, savers, trainers, cores) == pytest.approx(8.0 * share)


@pytest.mark.parametrize(("trainers", "savers", "cores"), [(1, 2, 2), (2, 1, 2), (3, 4, 4), (8, 2, 8)])
def test_the_delay_is_that_of_fair_shares(trainers: int, savers: int, cores: int) -> None:
    """A training whose threads want fewer cores than there are gets its share of all, and loses the rest."""
    wanted, lasting = min(trainers, cores), 10.0
    worked = lasting * cores * savers / (savers + trainers)
    lost = lasting * (1 - cores * trainers / (savers + trainers) / wanted)
    assert delay(worked, savers, trainers, cores) == pytest.approx(lost)


def test_time_counts_once_for_which_the_training_stands_still() -> None:
    """From the boundary until it goes on, and again when it waits, up to now where it still does; waits may nest."""
    clock = _Clock()
    cost = Cost(1, 99.0, clock=clock)
    assert cost.seconds() == 1.0
    clock.now += 1
    cost.goes_on()
    cost.goes_on()
    clock.now += 50
    assert cost.seconds() == 2.0
    with cost.standing():
        clock.now += 3
        with cost.standing():
            clock.now += 4
        assert cost.seconds() == 9.0
        clock.now += 1
        with pytest.raises(ZeroDivisionError), cost.standing():
            raise ZeroDivisionError
    clock.now += 50
    assert cost.seconds() == 10.0
    with cost._lock, cost.standing():  # a signal-like call of the same thread, in the middle of another
        clock.now += 1
    assert cost.seconds() == 11.0


def test_the_work_of_each_saving_thread_counts_from_its_beginning() -> None:
    """Of a thread that lived before, what it did since it began on this save; of one made for it, all."""
    cores = len(os.sched_getaffinity(0))
    cost = Cost(10 * cores, 0.0, clock=lambda: 0.0)

    def spin() -> None:
        sum(range(200_000))
        cost.works()

    spin()
    before = cost.seconds()
    assert before > 0
    cost.begins_work()
    cost.works()
    assert cost.seconds() < before
    used = cost.seconds()
    helper = threading.Thread(target=spin)
    helper.start()
    helper.join()
    assert cost.seconds() > used


def test_a_thread_that_waits_for_the_disk_is_hardly_a_saver(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two cores, one of which trains: a thread that works and one that mostly waits take next to nothing."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(time, "thread_time", lambda: worked[threading.get_native_id()])
    worked: dict[int, float] = {}
    cost = Cost(1, 0.0, clock=lambda: 0.0)

    def saver(seconds: float) -> None:
        worked[threading.get_native_id()] = seconds
        cost.works()

    for seconds in (1.0, 0.1):
        held = threading.Barrier(2)
        thread = threading.Thread(target=lambda s=seconds, h=held: (saver(s), h.wait()))
        thread.start()
        held.wait()
        thread.join()
    assert 0 < cost.seconds() < 0.06
