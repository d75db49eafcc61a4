"""What a trainer does at a boundary and in a poll, as tables."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from outlast_worker.boundary import GO_ON, Decision, Facts, at_boundary, in_poll

TRAINED = Facts(step=7, restored_step=5)
UNTRAINED = Facts(step=5, restored_step=5)


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, GO_ON),
        ({"due": "every 7 steps"}, Decision(seal="every 7 steps")),
        ({"asked": True}, Decision(seal="asked for")),
        ({"asked": True, "due": "every 7 steps"}, Decision(seal="asked for")),
        ({"stop": "SIGTERM"}, Decision(seal="SIGTERM", leave="SIGTERM")),
        ({"stop": "SIGTERM", "asked": True, "due": "x"}, Decision(seal="SIGTERM", leave="SIGTERM")),
        ({"stop": "SIGTERM", "sealed_step": 7}, Decision(leave="SIGTERM")),
        ({"stop": "SIGTERM", "sealed_step": 6}, Decision(seal="SIGTERM", leave="SIGTERM")),
        ({"finished": True}, Decision(seal="the last step", final=True)),
        ({"finished": True, "sealed_step": 7}, Decision(seal="the last step", final=True)),
        ({"finished": True, "stop": "SIGTERM"}, Decision(seal="the last step", final=True)),
        ({"finished": True, "finalised": True}, GO_ON),
        ({"finished": True, "finalised": True, "stop": "SIGTERM"}, Decision(leave="SIGTERM")),
        ({"asked": True, "sealed_step": 7}, GO_ON),
    ],
)
def test_each_boundary_has_one_decision(changes: dict[str, object], decision: Decision) -> None:
    """One save answers the end, a stop, a request and the cadence; a stop leaves after it."""
    assert at_boundary(msgspec.structs.replace(TRAINED, **changes)) == decision


def test_stop_before_any_step_leaves_without_a_save() -> None:
    """Told to stop before a step was trained since the restore, there is nothing to save yet."""
    for decide in (at_boundary, lambda facts: in_poll(facts, False), lambda facts: in_poll(facts, True)):
        decision = decide(msgspec.structs.replace(UNTRAINED, stop="SIGTERM"))
        assert decision == Decision(leave="SIGTERM, nothing to save yet")


def test_poll_without_a_snapshot_waits_for_the_boundary() -> None:
    """Between boundaries the live state is never saved: only a copy of the last boundary is."""
    for changes in ({"stop": "SIGTERM"}, {"asked": True}, {"due": "every 600 s"}):
        facts = msgspec.structs.replace(TRAINED, **changes)
        assert in_poll(facts, has_snapshot=False) == GO_ON
        assert in_poll(facts, has_snapshot=True).seal is not None


def test_poll_leaves_at_once_where_the_last_boundary_is_sealed() -> None:
    """A stop in an evaluation whose boundary is already safe needs no second save."""
    facts = msgspec.structs.replace(TRAINED, stop="SIGTERM", sealed_step=7)
    assert in_poll(facts, has_snapshot=False) == Decision(leave="SIGTERM")


def test_every_combination_of_facts_keeps_the_promises() -> None:
    """In all combinations: a stop always leaves; what is sealed is never sealed again, but for the final one;
    nothing is sealed at the restored step, but for the final one."""
    domain = itertools.product(
        (5, 7), (None, 5, 7), *([(False, True)] * 2), (None, "SIGTERM"), (False, True), (None, "due")
    )
    for step, sealed, finished, finalised, stop, asked, due in domain:
        facts = Facts(step, 5, sealed, finished, finalised, stop, asked, due)
        decision = at_boundary(facts)
        if stop and not decision.final:
            assert decision.leave is not None, facts
        if decision.seal and not decision.final:
            assert facts.trained, facts
            assert not facts.sealed, facts
        if stop is None:
            assert decision.leave is None, facts
