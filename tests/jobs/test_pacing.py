"""The automatic cadence: what a run's past is worth, and the interval that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from bench.replay import COSTS, NOTICES, Run, World, outcome, read, synthetic
from bench.traces import events, outages, sizes, states
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_jobs import events as journal_events
from outlast_jobs.ending import Kind
from outlast_jobs.history import replay
from outlast_jobs.journal import Record
from outlast_jobs.pacing import (
    COSTS_KEPT,
    PRIOR_ENDS,
    PRIOR_UP,
    VANISHED,
    Past,
    automatic,
    cost_of_a_save,
    mean_between_losses,
)

HOUR = 3600.0
LOSES = (Kind.CRASHED, Kind.CRASHED_PROGRESS, Kind.HUNG, Kind.SICK, VANISHED)
seconds = st.floats(0, 1e7)
# counts that are forgotten at this rate never exceed 47
pasts = st.builds(
    Past, st.floats(0, 1e9), st.floats(0, 23), st.floats(0, 23), st.lists(st.floats(0, 1e4)).map(tuple)
)


@settings(deadline=None)
@given(pasts, st.floats(0.01, 1e4), st.floats(0, 1e6))
def test_the_interval_is_within_its_bounds_and_says_why(past: Past, low: float, span: float) -> None:
    """Whatever the past is, the interval lies between the bounds, and has a reason in one line."""
    found = automatic(past, (low, low + span))
    assert low <= found.seconds <= low + span
    assert found.reason
    assert "\n" not in found.reason


@settings(deadline=None)
@given(pasts, st.floats(0, 1e3), st.floats(0, 1e3))
def test_dearer_saves_come_more_seldom(past: Past, cost: float, more: float) -> None:
    """With the same ends behind it, a higher cost of a save never makes the interval shorter."""
    bounds = (1e-3, 1e9)
    mean = mean_between_losses(past)
    if cost + more < 2 * mean:  # beyond that a save takes longer than the run lives
        cheap, dear = (
            automatic(Past(past.up, past.lost, past.noticed, (c,)), bounds) for c in (cost, cost + more)
        )
        assert dear.seconds >= cheap.seconds * (1 - 1e-9)


@settings(deadline=None)
@given(pasts, seconds)
def test_time_without_a_loss_makes_saves_more_seldom_and_a_loss_more_frequent(
    past: Past, lived: float
) -> None:
    """Up-time raises the expected time between losses; an end that loses work right after lowers it."""
    longer = past.lived(lived)
    assert mean_between_losses(longer) >= mean_between_losses(past)
    lost = longer.ended(0.0, Kind.CRASHED, None)
    assert mean_between_losses(lost) <= mean_between_losses(longer) * (1 + 1e-9)


def test_an_end_with_notice_loses_nothing_and_counts_otherwise() -> None:
    """Of runs that end every two hours, the one with notice saves at a fraction of the other's pace."""
    with_notice = without = Past(costs=(20.0,))
    for _ in range(8):
        with_notice = with_notice.ended(2 * HOUR, Kind.SAVED, "notice")
        without = without.ended(2 * HOUR, VANISHED, None)
    assert mean_between_losses(without) == pytest.approx(2 * HOUR, rel=0.1)
    assert mean_between_losses(with_notice) > 100 * HOUR
    bounds = (30.0, 1e9)
    assert automatic(with_notice, bounds).seconds > 6 * automatic(without, bounds).seconds


@pytest.mark.parametrize("by", ["person", "restart"])
def test_what_a_person_ends_says_nothing_of_the_machine(by: str) -> None:
    """A stop or restart by hand adds its up-time and is no end; nor is the run's own."""
    for kind, who in ((Kind.SAVED, by), (Kind.DONE, None), (Kind.REFUSED, None)):
        assert Past().ended(60.0, kind, who) == Past(up=60.0)


def test_every_end_that_loses_work_counts_as_one() -> None:
    """Crashes, hangs, divergence and what vanished are losses, however they came."""
    for kind in LOSES:
        ended = Past().ended(60.0, kind, None)
        assert (ended.lost, ended.noticed) == (1.0, 0.0)


def test_a_new_run_is_paced_by_the_prior_and_a_long_one_by_itself() -> None:
    """Before anything is known one end is expected in twice the prior's time; after many the run's own rate counts."""
    assert mean_between_losses(Past()) == pytest.approx(2 * PRIOR_UP / PRIOR_ENDS)
    past = Past()
    for _ in range(200):
        past = past.ended(600.0, VANISHED, None)
    assert mean_between_losses(past) == pytest.approx(600, rel=0.4)
    for _ in range(200):  # the weather changes, and the old days are forgotten
        past = past.ended(36_000.0, VANISHED, None)
    assert mean_between_losses(past) == pytest.approx(36_000, rel=0.1)


def test_the_interval_is_youngs_where_saves_are_short() -> None:
    """A save of 2 s and a loss every four hours: near sqrt(2 C M), and the reason names both."""
    past = Past(up=500 * 4 * HOUR - PRIOR_UP, lost=500 - PRIOR_ENDS, costs=(2.0,))
    mean = mean_between_losses(past)
    found = automatic(past, (1.0, 1e9))
    assert found.seconds == pytest.approx(math.sqrt(2 * 2.0 * mean), rel=0.03)
    assert "2 s" in found.reason
    assert "4h 0m" in found.reason


def test_nothing_measured_is_the_lower_bound() -> None:
    """The first save comes early: it shows what one costs."""
    found = automatic(Past(), (30.0, 7200.0))
    assert (found.seconds, found.reason) == (30.0, "the lower bound, until a save has been measured")


def test_one_stuck_disk_does_not_move_the_cost() -> None:
    """The cost is the median of the newest saves; a few outliers change nothing, and old saves are forgotten."""
    past = Past().saved(*[2.0] * 15, *[600.0] * 4)
    assert cost_of_a_save(past) == 2.0
    assert len(past.saved(*[9.0] * 500).costs) == COSTS_KEPT
    assert cost_of_a_save(past.saved(*[9.0] * COSTS_KEPT)) == 9.0


def told(seq: int, mono: float, event: str, *, boot: str = "b", **data: object) -> Record:
    """A record of the journal; its wall clock stands still, so that nothing can go by it."""
    return Record(seq, 1e9, mono, boot, 1, "h", event, dict(data))


def test_the_past_is_what_the_journal_says_by_the_monotonic_clock() -> None:
    """Saves, the up-time of attempts that attached, and how they ended; of one that vanished up to its last record."""
    history = replay(
        [
            told(1, 0, journal_events.ATTEMPT_STARTED, attempt=1),
            told(2, 2, journal_events.ATTEMPT_ATTACHED, attempt=1),
            told(3, 50, journal_events.SEALED, generation="step-000000009.a0001", step=9, seconds=1.5),
            told(4, 60, journal_events.ATTEMPT_ENDED, attempt=1, outcome="saved", by="restart"),
            told(5, 60, journal_events.ATTEMPT_STARTED, attempt=2),
            told(6, 90, journal_events.ATTEMPT_ENDED, attempt=2, outcome="crashed"),
            told(7, 100, journal_events.ATTEMPT_STARTED, attempt=3),
            told(8, 101, journal_events.ATTEMPT_ATTACHED, attempt=3),
            told(
                9,
                140,
                journal_events.SEALED,
                generation="step-000000019.a0003",
                step=19,
                seconds=9.0,
                cost=2.5,
            ),
            told(10, 5, journal_events.SUPERVISOR_STARTED, boot="c"),
        ]
    )
    expected = Past().ended(60, Kind.SAVED, "restart").ended(40, VANISHED, None).saved(1.5, 2.5)
    assert history.past == expected
    assert history.attempts[-1].step == 19


@pytest.mark.parametrize("name", sorted(synthetic()))
def test_a_replayed_trace_is_within_a_hundredth_of_the_best_fixed_interval(name: str) -> None:
    """Useful share of up-time, for saves of 1, 5, 20 and 60 s, with and without notice."""
    runs: Sequence[Run] = synthetic()[name]
    for notice in NOTICES:
        for cost in COSTS:
            found = outcome(runs, World(cost, notice))
            assert found.relative > -0.01, (notice, cost, found)
            assert 0 < found.auto < 1


def test_published_traces_become_stretches() -> None:
    """Each kind of file: who was up, from when to when, and whether it was taken away."""
    fleet = events(
        iter([["0", "add", "a"], ["0", "add", "b"], ["60000", "remove", "a"], ["90000", "add", "c"]])
    )
    assert list(fleet) == [("fleet", 0, 60, 1), ("fleet", 90, 90, 0), ("fleet", 0, 90, 0)]
    day = "2021-12-11"
    readings = sizes(iter([[day, " 11:00:00", " 1"], [day, " 11:10:00", " 0"], [day, " 11:20:00", " 1"]]))
    assert list(readings) == [("fleet", 0, 600, 1), ("fleet", 1200, 1200, 0)]
    gang = [["z", "0", "50", "3", "4"], ["z", "50", "100", "4", "4"], ["z", "150", "9", "3", "4"]]
    header = ["trace", "offset_s", "duration_s", "nodes_up", "nodes_wanted"]
    assert list(states(iter([header, *gang]))) == [("z", 50, 150, 1)]
    down = [["2", "1", f"{day}T00:00", f"{day}T01:00"], ["2", "7", f"{day}T00:30", f"{day}T02:00"]]
    down += [["2", "1", f"{day}T05:00", f"{day}T05:10"]]
    found = outages(iter([["system", "node", "started", "fixed"], *down]))
    assert list(found) == [("system 2", 2 * HOUR, 5 * HOUR, 1)]
    assert read(["run,up,down,lost", "a,0,10,1", "b,0,5,0", "a,20,50,0"])[0][1].seconds == 30
