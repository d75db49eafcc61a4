"""Clocks: a wall clock that is set, a suspended machine and a standstill are told from ordinary time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast_supervisor.clock import JUMP_SECONDS, PAUSE_SECONDS, Clocks, stood_still

DAY, YEAR = 86_400.0, 31_536_000.0
times = st.floats(0, 1e6)


def after(seconds: float, *, set_by: float = 0, suspended: float = 0) -> tuple[float, float]:
    """What a look tells so much later, of which the machine was suspended for a part."""
    clocks = Clocks(1.7e9, 100.0, 500.0)
    return clocks.look(Clocks(1.7e9 + seconds + set_by, 100.0 + seconds - suspended, 500.0 + seconds))


@given(times, st.lists(st.floats(0, 1e4), max_size=20))
def test_time_that_passes_is_no_jump(mono: float, passed: list[float]) -> None:
    """However long it is until the next look, all clocks moved by the same."""
    wall = 1.7e9
    clocks = Clocks(wall, mono, mono)
    for seconds in passed:
        wall, mono = wall + seconds, mono + seconds
        assert clocks.look(Clocks(wall, mono, mono)) == (0, 0)


@pytest.mark.parametrize("seconds", [DAY, -YEAR, 3600.0, -3600.0, JUMP_SECONDS + 1])
def test_a_jump_is_told_once(seconds: float) -> None:
    """By how much the wall clock moved against the others, and not again at the next look."""
    clocks = Clocks(1.7e9, 100.0, 100.0)
    assert clocks.look(Clocks(1.7e9 + 30 + seconds, 130.0, 130.0)) == (pytest.approx(seconds), 0)
    assert clocks.look(Clocks(1.7e9 + 31 + seconds, 131.0, 131.0)) == (0, 0)


@pytest.mark.parametrize("seconds", [0.5, -0.5, JUMP_SECONDS / 2, -JUMP_SECONDS / 2])
def test_an_ordinary_correction_is_no_jump(seconds: float) -> None:
    """A clock that is set right by a little is nothing to tell."""
    assert after(10, set_by=seconds) == (0, 0)


def test_a_suspended_machine_was_not_set_another_time() -> None:
    """While it sleeps the wall clock goes on as it should: what was told before is no other hour now."""
    assert after(7200 + 1, suspended=7200) == (0, pytest.approx(7200))
    assert after(7200 + 1, suspended=7200, set_by=-3600) == (pytest.approx(-3600), pytest.approx(7200))


@given(times, st.floats(0, 100), st.floats(0, 100))
def test_a_sleep_that_ends_in_time_is_no_standstill(before: float, wanted: float, slept: float) -> None:
    """Nor is one that an event ended, however long it was."""
    after = before + min(wanted, slept)
    assert stood_still(before + wanted, before, after) == 0
    assert stood_still(None, before, after) == 0


@given(times, st.floats(-100, 100), st.floats(0, 1e5))
def test_a_sleep_that_ends_late_is_a_standstill(before: float, wanted: float, late: float) -> None:
    """By as much as it is late, counted from when it began at the earliest; a busy machine is a little late."""
    due = max(before, before + wanted)
    found = stood_still(before + wanted, before, due + late)
    if late < PAUSE_SECONDS * 0.99:
        assert found == 0
    elif late > PAUSE_SECONDS * 1.01:
        assert found == pytest.approx(late, abs=1e-3)
