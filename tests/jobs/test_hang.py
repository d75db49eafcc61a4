"""Hangs: limits of silence for each phase, learnt from what was seen."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_jobs.contract import Phase
from outlast_jobs.hang import PhaseTimes, hung, limit


def seen(phase: str, *seconds: float) -> PhaseTimes:
    times = PhaseTimes()
    for sample in seconds:
        times = times.seen(phase, sample)
    return times


def test_half_an_hour_before_twenty_samples_and_ten_minutes_after() -> None:
    """The default limit falls from 1800 s to 600 s with the twentieth sample."""
    assert limit("train", PhaseTimes(), 600, True) == 1800
    assert limit("train", seen("train", *[0.05] * 19), 600, True) == 1800
    assert limit("train", seen("train", *[0.05] * 20), 600, True) == 600


def test_ten_times_the_longest_raises_the_limit() -> None:
    """A phase that once took 100 s may take 1000 s, and before it is learnt never less than that."""
    assert limit("train", seen("train", 100, *[1] * 30), 600, True) == 1000
    assert limit("train", seen("train", 400), 600, True) == 4000


def test_hang_min_lowers_it() -> None:
    """`hang.min` of 2 s means 6 s before and 2 s after."""
    assert limit("train", PhaseTimes(), 2, True) == 6
    assert limit("train", seen("train", *[0.05] * 20), 2, True) == 2


def test_phases_learn_apart() -> None:
    """A long evaluation makes no step longer, nor the other way round."""
    times = seen("eval", *[500] * 20)
    assert limit(Phase.EVAL, times, 600, True) == 5000
    assert limit(Phase.TRAIN, times, 600, True) == 1800
    assert limit(Phase.COMPILE, times, 600, True) == 1800


def test_a_worker_that_never_attached_never_hangs() -> None:
    """Without a trainer's reports silence says nothing, in any phase."""
    for phase in Phase:
        assert limit(phase, PhaseTimes(), 600, False) is None
        assert hung(phase, 1e9, PhaseTimes(), 600, False) is None


@settings(deadline=None)
@given(
    st.sampled_from(list(Phase)),
    st.lists(st.floats(0, 1e5), max_size=40),
    st.floats(0.1, 1e4),
    st.floats(0, 1e7),
)
def test_a_hang_is_called_from_the_limit_on(
    phase: Phase, samples: list[float], least: float, silent: float
) -> None:
    """`hung` speaks exactly from `limit` on, never below ten times the longest seen, and says why."""
    times = seen(phase, *samples)
    most = limit(phase, times, least, True)
    assert most is not None
    assert most >= max([least, *(10 * sample for sample in samples)])
    found = hung(phase, silent, times, least, True)
    assert (found is not None) == (silent >= most)
    if found is not None:
        assert found.limit == most
        assert phase in found.reason
