"""Cadence: when a save is due, when the worker is asked for one, and what a deadline means."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_jobs.cadence import (
    Ask,
    FarAway,
    SavePolicy,
    StopNow,
    TrainOn,
    Violation,
    auto_interval,
    due,
    last_fit,
    overdue,
    overdue_at,
)


def saves(policy: SavePolicy, steps: int, step_seconds: float) -> list[tuple[int, float, str]]:
    """Every save of a worker whose steps all take the same time, from step 0 at second 0."""
    found: list[tuple[int, float, str]] = []
    last_step, last_time = 0, 0.0
    for step in range(1, steps + 1):
        now = step * step_seconds
        if told := due(step, now, last_step, last_time, policy, bool(found)):
            found.append((step, now, told.reason))
            last_step, last_time = step, now
    return found


@settings(deadline=None)
@given(
    every_steps=st.none() | st.integers(1, 50),
    every_seconds=st.none() | st.floats(0.01, 100),
    step_seconds=st.floats(0.001, 10),
    restarted=st.booleans(),
)
def test_never_later_than_the_cadence_by_more_than_a_step(
    every_steps: int | None, every_seconds: float | None, step_seconds: float, restarted: bool
) -> None:
    """Between two saves lie at most N steps and at most T seconds and one step."""
    made = saves(SavePolicy(every_steps, every_seconds, restarted), 200, step_seconds)
    marks = [(0, 0.0), *((step, at) for step, at, _ in made), (200, 200 * step_seconds)]
    for (step, at), (next_step, next_at) in itertools.pairwise(marks):
        if every_steps is not None:
            assert next_step - step <= every_steps
        if every_seconds is not None:
            assert next_at - at <= every_seconds + step_seconds + 1e-6
    if every_steps is None and every_seconds is None:
        assert not made


def test_slow_steps_are_saved_at_the_first_boundary_after_the_interval() -> None:
    """Steps of 3 s under every_seconds 10 are saved every fourth step."""
    assert [step for step, _, _ in saves(SavePolicy(every_seconds=10), 12, 3.0)] == [4, 8, 12]


def test_steps_are_saved_at_multiples_whatever_interrupted_the_run() -> None:
    """After a save asked for at step 137, every_steps 50 still saves step 150."""
    assert due(149, 0, 137, 0, SavePolicy(50), True) is None
    assert due(150, 0, 137, 0, SavePolicy(50), True)


def test_the_first_save_after_a_restart_comes_at_a_quarter_of_the_interval() -> None:
    """T/4 after a restart, T from then on, T on a fresh start."""
    made = saves(SavePolicy(every_seconds=40, restarted=True), 100, 1.0)
    assert [at for _, at, _ in made] == [10, 50, 90]
    assert "after a restart" in made[0][2]
    assert [at for _, at, _ in saves(SavePolicy(every_seconds=40), 100, 1.0)] == [40, 80]


def test_nothing_is_due_without_a_new_step() -> None:
    """However much time has passed, a step that is already saved is not saved again."""
    assert due(7, 1e9, 7, 0, SavePolicy(1, 1.0), True) is None


def test_a_stopped_worker_saves_once_and_not_in_a_burst() -> None:
    """A gap of a thousand intervals makes one save due, and the next one interval later."""
    policy = SavePolicy(every_seconds=10)
    assert due(5, 10_000, 4, 0, policy, True)
    assert due(6, 10_001, 5, 10_000, policy, True) is None


def test_a_silent_worker_is_asked_and_then_reported() -> None:
    """T without a seal asks, another T after asking is a violation, and a seal ends both."""
    policy = SavePolicy(every_seconds=60)
    assert overdue(59, 0, None, policy) is None
    assert isinstance(overdue(60, 0, None, policy), Ask)
    assert overdue(119, 0, 60, policy) is None
    assert isinstance(overdue(120, 0, 60, policy), Violation)
    assert overdue(121, 100, 60, policy) is None
    assert isinstance(overdue(160, 100, 60, policy), Ask)
    assert overdue(1e9, 0, None, SavePolicy(every_steps=5)) is None


def test_the_allowance_keeps_a_worker_on_time_from_being_asked() -> None:
    """Neither request nor violation comes before a step and a save have had their time."""
    policy = SavePolicy(every_seconds=60)
    assert overdue(64, 0, None, policy, 5) is None
    assert isinstance(overdue(65, 0, None, policy, 5), Ask)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.floats(0.1, 1e5), st.floats(0, 100))
def test_the_timer_of_enforcement_is_when_it_speaks(
    sealed: float, asked: float | None, seconds: float, allowance: float
) -> None:
    """`overdue` is silent just before `overdue_at` and speaks at it, with a reason."""
    policy = SavePolicy(every_seconds=seconds)
    at = overdue_at(sealed, asked, policy, allowance)
    assert at is not None
    told = overdue(at, sealed, asked, policy, allowance)
    assert told is not None
    assert told.reason
    assert overdue(math.nextafter(at, -math.inf), sealed, asked, policy, allowance) is None


def test_auto_interval_is_youngs_for_short_saves_and_stays_within_bounds() -> None:
    """Short saves: sqrt(2 C M) within a few per cent; bounds hold; unmeasured is the lower bound."""
    young = math.sqrt(2 * 2.0 * 14_400)
    assert abs(auto_interval(2.0, 14_400, (1, 1e6)) - young) < 0.03 * young
    assert auto_interval(2.0, 14_400, (30, 60)) == 60
    assert auto_interval(0.0, 14_400, (30, 60)) == 30
    assert auto_interval(None, 14_400, (30, 60)) == 30
    assert auto_interval(2.0, None, (30, 60)) == 30
    assert auto_interval(500, 100, (1, 1e6)) == 100


@settings(deadline=None)
@given(st.floats(0, 1e5), st.floats(1, 1e7), st.floats(1, 100), st.floats(0, 1e5))
def test_auto_interval_never_leaves_its_bounds(save: float, mean: float, low: float, span: float) -> None:
    """Whatever was measured, the interval lies between the bounds."""
    assert low <= auto_interval(save, mean, (low, low + span)) <= low + span


def test_a_deadline_is_read_as_the_table_says() -> None:
    """None or far: go on. Near: train on until a doubled step and save fit. Too near or unmeasured: stop."""
    assert isinstance(last_fit(100, None, 1, 1, 120), FarAway)
    assert isinstance(last_fit(100, 281, 1, 1, 120), FarAway)
    on = last_fit(100, 280, 3, 7, 120)
    assert isinstance(on, TrainOn)
    assert on.until == 280 - 20
    assert isinstance(last_fit(100, 120, 3, 7, 120), StopNow)
    assert isinstance(last_fit(100, 90, 3, 7, 120), StopNow)
    assert isinstance(last_fit(100, 160, None, 7, 120), StopNow)
    assert isinstance(last_fit(100, 160, 3, None, 120), StopNow)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(-100, 1e4), st.floats(0, 100), st.floats(0, 100), st.floats(0, 600))
def test_training_on_always_leaves_room_for_a_save(
    now: float, left: float, step: float, save: float, warn: float
) -> None:
    """After the moment to stop there is twice the time of a step and a save; every answer has a reason."""
    told = last_fit(now, now + left, step, save, warn)
    assert told.reason
    if isinstance(told, TrainOn):
        assert told.until <= now + left - 2 * (step + save) + 1e-6
        assert told.until >= now - 1e-6
