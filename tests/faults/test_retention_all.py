"""All retention policies against all sets of verdicts up to a size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.scale import scaled, told

from outlast_jobs.generation import GenerationName
from outlast_jobs.retention import Gen, Plan, plan

MOST = scaled(3, 5)


@dataclass(frozen=True)
class Keep:
    """A policy of a job file."""

    last: int
    every_steps: int | None = None
    max_bytes: int | None = None


POLICIES = [
    Keep(last, every, most)
    for last in (1, 2, 3)
    for every in (None, 20)
    for most in (None, 0, 5, 9)
]  # fmt: skip
# one attempt; and one that was followed by another, which trained some steps again
NAMES = [
    [GenerationName(10 * n, 1) for n in range(1, 7)],
    [GenerationName(s, a) for s, a in ((10, 1), (20, 1), (30, 1), (20, 2), (30, 2), (40, 3))],
]


def _sets() -> Iterator[list[Gen]]:
    """Every set of generations, each verified or not and healthy or not, sizes told apart."""
    for number in range(MOST + 1):
        for names, what in itertools.product(NAMES, itertools.product(range(4), repeat=number)):
            yield [
                Gen(name, bool(w & 1), bool(w & 2), 2 + n % 2)
                for n, (name, w) in enumerate(zip(names, what, strict=False))
            ]


def _protected(gens: list[Gen], pinned: set[str], resumed: str | None) -> set[str]:
    """What no policy may drop, worked out in another way than by the code."""
    verified = [g for g in gens if g.verified]
    newest = max(verified, key=lambda g: (g.name.attempt, g.name.step), default=None)
    healthy = max(
        (g for g in verified if g.healthy), key=lambda g: (g.name.attempt, g.name.step), default=None
    )
    found = {str(g.name) for g in gens if str(g.name) in pinned or str(g.name) == resumed}
    found |= {str(g.name) for g in (newest, healthy) if g is not None}
    if newest is not None:
        found |= {str(g.name) for g in gens if g.name > newest.name}
    return found


def _dropped(found: Plan) -> set[str]:
    return {name for name, _ in found.drop}


def test_no_policy_drops_what_may_be_needed_and_each_says_why() -> None:
    """Of every set, by every policy: the newest verified, the newest healthy, pinned and resumed ones stay."""
    tried = 0
    for gens in _sets():
        names = [str(g.name) for g in gens]
        for keep in POLICIES[:: scaled(3, 1)]:
            for pinned, resumed in itertools.product([None, *names], [None, *names]):
                tried += 1
                pins = {pinned} if pinned else set()
                found = plan(gens, keep, pins, resumed, True)
                dropped = _dropped(found)
                kept = {name for name, _ in found.keep}
                assert dropped | kept == set(names)
                assert not dropped & kept
                assert all(reason for _, reason in (*found.keep, *found.drop))
                assert not dropped & _protected(gens, pins, resumed), (gens, keep, pins, resumed, found)
                if not any(g.verified for g in gens):
                    assert not dropped
                left = [g for g in gens if str(g.name) not in dropped]
                assert not plan(left, keep, pins, resumed, True).drop, "a second time drops more"
    told("retention plans", tried)


def test_an_incomplete_view_drops_nothing() -> None:
    """Where something could not be seen every policy refuses, and says so."""
    for gens, keep in itertools.product(_sets(), POLICIES):
        found = plan(gens, keep, set(), None, False)
        assert not found.drop
        assert found.refused


def test_asking_to_keep_more_never_drops_more() -> None:
    """A larger last, a larger limit of bytes, and a pin where there is no limit, drop no more than before."""
    for gens, keep in itertools.product(_sets(), POLICIES):
        before = _dropped(plan(gens, keep, set(), None, True))
        assert _dropped(
            plan(gens, Keep(keep.last + 1, keep.every_steps, keep.max_bytes), set(), None, True)
        ) <= before or (keep.max_bytes is not None)
        if keep.max_bytes is not None:
            for most in (keep.max_bytes + 1, keep.max_bytes + 3, None):
                assert (
                    _dropped(plan(gens, Keep(keep.last, keep.every_steps, most), set(), None, True)) <= before
                )
        else:
            for gen in gens:
                assert _dropped(plan(gens, keep, {str(gen.name)}, None, True)) <= before


def test_the_order_in_which_they_are_seen_means_nothing() -> None:
    """The plan is the same whatever order the folder was listed in."""
    for gens in _sets():
        if len(gens) == 3:
            for keep in POLICIES[::3]:
                plans = {plan(order, keep, set(), None, True) for order in itertools.permutations(gens)}
                assert len(plans) == 1
