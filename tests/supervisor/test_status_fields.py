"""The snapshot that people read: from each state it can be made, and it says what is waited for and what is at risk."""

from __future__ import annotations

import itertools
import json
import re

from msgspec.structs import replace
from tests.faults.cells import LEDGERS, LIVES, NOW, live, states

from outlast_supervisor.snapshot import Facts, snapshot
from outlast_supervisor.states import Ending, Running, Starting, State, Stopping

FACTS = Facts("a" * 32, "x", "here", "1:2:boot", 1e9, "flock", False, (), 10.0, True, 1e9)


def reachable(state: State) -> State:
    """With the duration of each seal that it counts, as the table keeps them."""
    if isinstance(state, Starting | Running | Stopping | Ending) and state.live.seals:
        return replace(state, ledger=replace(state.ledger, saves=(0.1,) * state.live.seals))
    return state


def test_every_state_can_be_shown() -> None:
    """No state brings an error; all values are plain JSON; risk is never negative."""
    seen = set()
    for state in map(reachable, itertools.islice(states(), 0, None, 7)):  # a sample, in all nine states
        view = snapshot(state, FACTS, NOW)
        seen.add(view["state"])
        json.dumps(view, allow_nan=False)
        assert (view["steps_at_risk"] or 0) >= 0
        assert view["done"] == (view["exit_code"] == 0)
    assert len(seen) == 9


def test_what_is_waited_for_is_shown_with_the_last_boundary_and_the_phase() -> None:
    """A stop or a save that a worker has not answered is pending, and it is seen what holds it up; else nothing is."""
    evaluating = live(attached=True, phase="eval", step=140, stepped_at=NOW - 3)
    stopping = Stopping(LEDGERS[0], evaluating, "notice", "SIGTERM", None, NOW + 9, None)
    assert (
        snapshot(stopping, FACTS, NOW)["pending"] == "SIGTERM pending, last boundary 3 s ago, in phase eval"
    )
    early = replace(stopping, live=live(phase="import"))
    assert snapshot(early, FACTS, NOW)["pending"] == "SIGTERM pending, no boundary yet, in phase import"
    for worker in LIVES:
        shown = snapshot(reachable(Running(LEDGERS[0], worker)), FACTS, NOW)["pending"]
        if worker.save_wanted:
            assert re.match(rf"save asked by {worker.save_wanted[0]} pending, ", shown)
        else:
            assert shown is None
