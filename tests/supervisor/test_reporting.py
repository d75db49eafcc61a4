"""Properties of a report's values: no time is lost between the sums, no peak between the points of a curve."""

from __future__ import annotations

import math
import random
import time
from collections import deque

import pytest

from outlast_jobs.history_model import AttemptRecord
from outlast_supervisor.reporting.curve import Curve
from outlast_supervisor.reporting.goodput import PARTS, Trained, account, stood_still, stretches
from outlast_supervisor.reporting.ticks import log_ticks, round_ticks, time_ticks

DICE = random.Random(24)


def an_attempt(number: int, started: float, ended: float | None, **more: object) -> AttemptRecord:
    record = AttemptRecord(number, 1, "n1", started, ended=ended, outcome="crashed" if ended else None)
    return AttemptRecord(**{key: more.get(key, getattr(record, key)) for key in record.__struct_fields__})


def test_a_curve_keeps_its_peaks_in_few_points() -> None:
    """However many values come, the points are bounded, in order, of the values, and have the highest and lowest."""
    for count in (1, 7, 2_400, 2_401, 50_000):
        values = [DICE.gauss(0, 1) for _ in range(count)]
        values[count // 2], values[count // 3] = 90.0, -90.0
        curve = Curve()
        first = DICE.choice([0, 1, 999_999])
        for step, value in enumerate(values, first):
            curve.add(step, value)
        points = list(curve)
        assert len(points) <= 2_400
        assert [step for step, _ in points] == sorted({step for step, _ in points})
        assert all(values[step - first] == value for step, value in points)
        assert {max(values), min(values)} <= {value for _, value in points}


def test_a_curve_counts_what_it_can_not_draw() -> None:
    """NaN, infinities and absurd numbers are counted, the first one's step is kept, and the rest is drawn."""
    curve = Curve()
    for step, value in enumerate([1.0, math.nan, math.inf, -1e300, 2.0], 5):
        curve.add(step, value)
    assert (list(curve), curve.odd, curve.first_odd) == ([(5, 1.0), (9, 2.0)], 3, 6)


def test_the_parts_of_the_time_add_up() -> None:
    """Whatever an attempt's clocks say, its parts follow one another, and with "down" they are the whole."""
    for _ in range(300):
        attempts, trained, at = [], {}, DICE.uniform(0, 1e9)
        for number in range(1, DICE.randint(2, 9)):
            at += DICE.choice([0.0, 1.0, 600.0])
            lived = DICE.choice([0.0, 2.0, 100.0])
            wild = DICE.uniform(-50, 150) if DICE.random() < 0.5 else lived / 2
            ended = None if DICE.random() < 0.3 else at + DICE.choice([lived, lived, wild])
            attached = DICE.choice([None, at + lived / 4, at + wild])
            outcome = "crashed" if ended else DICE.choice([None, "vanished"])
            attempts.append(an_attempt(number, at, ended, attached=attached, outcome=outcome))
            if DICE.random() < 0.7:
                kept = DICE.choice([None, at + lived / 2, at + wild])
                stood = DICE.choice([0.0, 1.0, 1e4])
                trained[number] = Trained(1, 9, at + wild, 4 if kept else 0, kept, 9, stood)
            at += lived
        found = stretches(attempts, trained, at + 5)
        for one in found:
            ends = [one.begins, *(until for _, _, until in one.parts)]
            assert ends == sorted(ends)
        sums = account(found)
        assert all(value >= 0 for value in sums.seconds.values())
        assert sum(sums.seconds.values()) == pytest.approx(sums.until - sums.began, abs=1e-3)


def test_goodput_is_what_counts_of_all_the_time() -> None:
    """100 s: started, 20 s until it trained, 30 s that count, 10 s lost, 5 s to its end, 15 s of nothing, and again."""
    first = an_attempt(1, 1000.0, 1065.0, attached=1020.0)
    second = an_attempt(2, 1080.0, None, attached=1090.0)
    trained = {1: Trained(1, 8, 1060.0, 6, 1050.0, 8), 2: Trained(7, 9, 1099.0, 3, 1099.0, 3)}
    found = stretches([first, second], trained, 1100.0)
    sums = account(found)
    assert sums.seconds == {"starting": 30.0, "kept": 39.0, "lost": 10.0, "ending": 6.0, "down": 15.0}
    assert (sums.kept, sums.lost) == (9, 2)
    assert sums.share == pytest.approx(0.39)
    assert sums.share_of_up == pytest.approx(39 / 85)
    assert found[1].runs
    assert found[1].end == "runs"


def test_what_a_run_was_suspended_for_counts_as_down() -> None:
    """A pause that lies between two steps is no training; one in which steps were made was its supervisor's alone."""
    pauses = deque([(1.0, 2.0), (11.0, 15.0), (16.5, 18.0), (20.0, 30.0)])
    assert [stood_still(pauses, at, at + 5) for at in (5, 10, 15, 20, 25)] == [0, 4.0, 1.5, 0, 0]
    found = stretches(
        [an_attempt(1, 0.0, 100.0, attached=10.0)], {1: Trained(1, 8, 90.0, 8, 90.0, 8, 60.0)}, 100.0
    )
    sums = account(found)
    assert sums.seconds == {"starting": 10.0, "kept": 20.0, "lost": 0.0, "ending": 10.0, "down": 60.0}
    assert sums.share == pytest.approx(0.2)
    assert sums.share_of_up == pytest.approx(0.5)


def test_without_steps_there_is_no_goodput() -> None:
    """A command that records no steps has no goodput, which is not the same as none of its time being of use."""
    sums = account(stretches([an_attempt(1, 5.0, 9.0)], {}, 20.0))
    assert sums.seconds["starting"] == 4.0
    assert sums.share is sums.share_of_up is None
    assert account(()).share is None
    assert set(sums.seconds) == {*PARTS, "down"}


def test_ticks_are_few_round_and_inside() -> None:
    """Any axis has at least one mark and few of them, all between its ends; those of time are round in local time."""
    for _ in range(2_000):
        low = DICE.choice([0.0, 1e-9, -3.7, 1e12, DICE.uniform(-5, 5)])
        high = low + DICE.choice([1e-6, 1.0, 17.3, 1e9]) * DICE.uniform(0.1, 9)
        if high <= low:
            continue
        found = round_ticks(low, high)
        assert len(found) <= 7
        assert all(low - 1e-6 * abs(low) <= tick <= high + (high - low) * 1e-6 for tick in found)
        base = 10.0 ** DICE.uniform(-30, 30)
        found = log_ticks(base, base * 10.0 ** DICE.uniform(1.5, 40))
        assert 1 <= len(found) <= 7
        since = DICE.uniform(1.7e9, 1.9e9)
        until = since + 10.0 ** DICE.uniform(0, 8)
        moments, written = time_ticks(since, until)
        assert len(moments) <= 9
        assert all(since <= moment <= until for moment in moments)
        assert all(written(moment) for moment in moments)
    assert round_ticks(3.0, 3.0) == [3.0]
    assert log_ticks(0.9, 2e8) == [1.0, 1e2, 1e4, 1e6, 1e8]
    moments, written = time_ticks(0.0, 7 * 3600.0)
    assert all(time.localtime(moment).tm_min == 0 for moment in moments)
