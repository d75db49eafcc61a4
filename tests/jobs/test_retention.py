"""Retention: what may never be dropped isn't, whatever the policy, and each line of a plan has its reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from outlast_jobs.generation import GenerationName
from outlast_jobs.retention import Gen, Plan, Reasoned, plan


@dataclass(frozen=True)
class Keep:
    last: int = 3
    every_steps: int | None = None
    max_bytes: int | None = None


def gen(step: int, attempt: int = 1, verified: bool = True, healthy: bool = True, size: int = 10) -> Gen:
    return Gen(GenerationName(step, attempt), verified, healthy, size)


def names(lines: tuple[tuple[str, str], ...]) -> set[str]:
    return {name for name, _ in lines}


STEPS = ((100, 1), (200, 1), (150, 2), (400, 3))
KINDS = ((True, True), (True, False), (False, True))
POLICIES = tuple(
    Keep(last, every, most)
    for last, every, most in itertools.product((1, 2, 9), (None, 200), (None, 0, 25, 1000))
)


def cases() -> Iterator[tuple[list[Gen], Keep, set[str], str | None]]:
    for count in range(len(STEPS) + 1):
        for kinds in itertools.product(KINDS, repeat=count):
            gens = [gen(step, attempt, *kind) for (step, attempt), kind in zip(STEPS, kinds, strict=False)]
            known = [str(one.name) for one in gens]
            marks = (
                [(set(), None)] if count < 1 else [(set(), None), ({known[0]}, known[-1]), (set(), known[0])]
            )
            for policy, (pinned, resumed) in itertools.product(POLICIES, marks):
                yield gens, policy, pinned, resumed


def protected(gens: list[Gen], pinned: set[str], resumed: str | None) -> set[str]:
    """What may never go, worked out without the module's own help."""
    order = sorted(gens, key=lambda one: (one.name.attempt, one.name.step))
    good = [one for one in order if one.verified]
    result = {str(one.name) for one in gens if str(one.name) in pinned or str(one.name) == resumed}
    result |= {str(one.name) for one in good[-1:]}
    result |= {str(one.name) for one in [one for one in good if one.healthy][-1:]}
    if good:
        result |= {str(one.name) for one in order[order.index(good[-1]) + 1 :]}
    return result


def test_never_dropped_in_all_small_worlds() -> None:
    """The newest verified, the newest healthy, the pinned and the resumed-from stay under every policy."""
    for gens, policy, pinned, resumed in cases():
        result = plan(gens, policy, pinned, resumed, True)
        told = (gens, policy, pinned, resumed, result)
        assert protected(gens, pinned, resumed) <= names(result.keep), told
        assert names(result.keep) | names(result.drop) == {str(one.name) for one in gens}, told
        assert not names(result.keep) & names(result.drop), told
        assert all(reason for _, reason in (*result.keep, *result.drop)), told
        assert plan(gens[::-1], policy, pinned, resumed, True) == result, told
        if not any(one.verified for one in gens):
            assert not result.drop, told


def test_max_bytes_is_honoured_as_far_as_the_rest_allows() -> None:
    """More than max_bytes stays only where all that stays must."""
    for gens, policy, pinned, resumed in cases():
        result = plan(gens, policy, pinned, resumed, True)
        if policy.max_bytes is None or result.refused:
            continue
        kept = sum(one.bytes for one in gens if str(one.name) in names(result.keep))
        if kept > policy.max_bytes:
            assert names(result.keep) == protected(gens, pinned, resumed), (gens, policy, result)


def test_last_are_kept_where_room_is() -> None:
    """Without a limit in bytes the newest N verified stay, and without more rules no other verified one."""
    for gens, policy, pinned, resumed in cases():
        if policy.max_bytes is not None:
            continue
        order = sorted((one for one in gens if one.verified), key=lambda one: one.name, reverse=True)
        last = {str(one.name) for one in order[: policy.last]}
        result = plan(gens, policy, pinned, resumed, True)
        assert last <= names(result.keep)
        if policy.every_steps is None and order:
            verified = {str(one.name) for one in order}
            assert names(result.keep) & verified == last | (protected(gens, pinned, resumed) & verified)


def test_applying_a_plan_again_drops_nothing() -> None:
    """A plan is stable: what it kept is kept when nothing has changed."""
    for gens, policy, pinned, resumed in cases():
        first = plan(gens, policy, pinned, resumed, True)
        left = [one for one in gens if str(one.name) in names(first.keep)]
        assert not plan(left, policy, pinned, resumed, True).drop, (gens, policy, first)


def test_incomplete_view_is_refused() -> None:
    """Where not all could be seen, nothing goes, and the plan says why."""
    for gens, policy, pinned, resumed in cases():
        result = plan(gens, policy, pinned, resumed, False)
        assert not result.drop
        assert "could be seen" in (result.refused or "")
        assert len(result.keep) == len(gens)


def test_keeping_none_is_refused() -> None:
    """``last: 0`` is an error that says why, never a way to delete everything."""
    with pytest.raises(ValueError, match=r"keep\.last is 0, but at least 1 must stay"):
        plan([gen(1)], Keep(last=0), (), None, True)
    with pytest.raises(ValueError, match=r"keep\.every_steps is 0"):
        plan([gen(1)], Keep(every_steps=0), (), None, True)


def test_a_periodic_one_is_the_first_past_each_multiple() -> None:
    """With saves that miss the multiples, each multiple is stood for by the first generation past it."""
    gens = [gen(step) for step in (90, 130, 170, 210, 250, 310, 350)]
    result = plan(gens, Keep(last=1, every_steps=100), (), None, True)
    assert [name[5:14] for name, _ in result.keep] == ["000000350", "000000310", "000000210", "000000130"]
    assert dict(result.keep)["step-000000210.a0001"] == "first at or past step 200"


def test_reasons_read_as_a_person_would_say_them() -> None:
    """The plan of one mixed world, line by line."""
    gens = [
        gen(100, 1),
        gen(200, 1, verified=False),
        gen(300, 2),
        gen(400, 2, healthy=False),
        gen(500, 3, healthy=False),
        gen(600, 3, verified=False),
    ]
    assert plan(gens, Keep(last=2), set(), "step-000000400.a0002", True) == Plan(
        keep=(
            Reasoned("step-000000600.a0003", "newer than the newest verified"),
            Reasoned("step-000000500.a0003", "newest verified"),
            Reasoned("step-000000400.a0002", "resumed from"),
            Reasoned("step-000000300.a0002", "newest healthy"),
        ),
        drop=(
            Reasoned("step-000000200.a0001", "never verified, and 2 verified ones are newer"),
            Reasoned("step-000000100.a0001", "not one of the last 2"),
        ),
    )


def test_a_stale_higher_step_of_an_older_attempt_holds_no_slot() -> None:
    """After a roll-back the newer attempt's lower steps are the last ones, not the older attempt's higher."""
    gens = [gen(5000, 1), gen(310, 2), gen(320, 2)]
    result = plan(gens, Keep(last=2), set(), None, True)
    assert names(result.drop) == {"step-000005000.a0001"}


def test_over_budget_goes_the_unverified_first_then_the_oldest() -> None:
    """What isn't verified makes room before what is."""
    gens = [gen(1), gen(2), gen(3, verified=False), gen(4), gen(5)]
    result = plan(gens, Keep(last=9, max_bytes=30), set(), None, True)
    assert [name[5:14] for name, _ in result.drop] == ["000000003", "000000001"]
    assert dict(result.drop)["step-000000003.a0001"] == "over max_bytes: 50 bytes are kept, 30 are allowed"
