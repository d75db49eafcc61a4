"""When a file is read and when it counts as removed, on drawn sequences of looks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_supervisor.daemon.settle import GONE, SETTLE, Sight, settle, took

steps = st.lists(st.tuples(st.floats(0.01, 1.5), st.none() | st.integers(1, 3)), max_size=25)


@given(steps)
@settings(max_examples=200, deadline=None)
def test_only_what_was_left_alone_is_read_and_only_what_stayed_away_is_forgotten(
    looks: list[tuple[float, int | None]],
) -> None:
    """A file is read once for each change, after it looked the same for a while; a short absence is no removal."""
    sights: dict[str, Sight] = {}
    now, seen_since, last = 0.0, 0.0, None
    read: int | None = None
    known = False
    for pause, latest in looks:
        now += pause
        if latest != last:
            seen_since, last = now, latest
        sights, due = settle(sights, {} if latest is None else {"a": (latest,)}, now)
        sight = sights.get("a")
        if sight is not None and sight.changed and sight.settled(now):
            assert now - seen_since >= SETTLE
            assert latest is not None
            assert latest != read or not known
            sights["a"] = took(sight)
            read, known = latest, True
        if known and sight is None:
            assert latest is None
            assert now - seen_since >= GONE
            known, read = False, None
        if known and latest is not None and latest != read:
            assert due is not None, "a change that waits is looked at again"
            assert due <= now + SETTLE
        if known and latest is None:
            assert due is not None
            assert due <= now + GONE


def test_a_change_that_stays_is_read() -> None:
    """At the moment that was named, a change is taken; then nothing more is due."""
    sights, due = settle({}, {"a": (1,)}, 0.0)
    assert due == SETTLE
    sights, due = settle(sights, {"a": (1,)}, due)
    assert sights["a"].changed
    assert sights["a"].settled(SETTLE)
    sights["a"] = took(sights["a"])
    assert settle(sights, {"a": (1,)}, 1.0) == (sights, None)
