"""Verdicts on attacks, from facts made by hand: each promise is broken by what breaks it, and by nothing else."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import pytest

from outlast_jobs.contract import Answer
from outlast_supervisor.drill.attacking import Measured
from outlast_supervisor.drill.ends import Final, judge_end
from outlast_supervisor.drill.model import Act, Attack, Case, Row, Seen, Target
from outlast_supervisor.drill.verdicts import judge, lost, whole

G5, G10 = "step-000000005.a0001", "step-000000010.a0001"

BEFORE = Seen(
    attempt=1,
    steps={1: 12},
    restored={1: 0},
    first={1: 1},
    generations={G5: "", G10: ""},
    sealed=(G5, G10),
)
AFTER = dataclasses.replace(
    BEFORE,
    attempt=2,
    steps={1: 13, 2: 11},
    restored={1: 0, 2: 10},
    first={1: 1, 2: 11},
    compared=1,
)


def case(act: Act, target: Target = Target.TRAINER, point: str = "step", **facts: Any) -> Case:
    """A run of cadence 5 that was struck at step 13, and resumed from step 10, unless told otherwise."""
    made = Case(Attack(point, act, target), BEFORE, AFTER, 1, 5, library=True)
    after = {name: facts.pop(name) for name in list(facts) if name in Seen.__dataclass_fields__}
    return dataclasses.replace(made, after=dataclasses.replace(AFTER, **after), **facts)


SAVED = {"steps": {1: 13, 2: 14}, "restored": {1: 0, 2: 13}, "first": {1: 1, 2: 14}}
ON = {"attempt": 1, "steps": {1: 14}}

HELD = {
    "killed": case(Act.KILL),
    "saved and stopped": case(Act.TERM, **SAVED),
    "stopped by the supervisor": case(Act.TERM, Target.SUPERVISOR, code=75, **SAVED),
    "supervisor killed": case(Act.KILL, Target.SUPERVISOR, code=-signal.SIGKILL),
    "done meanwhile": case(Act.TERM, Target.SUPERVISOR, code=0, finished=True, **ON),
    "saved and went on": case(Act.USR1, sealed=(G5, G10, "step-000000013.a0001"), **ON),
    "stopped for a moment": case(Act.STOP, **ON),
    "hung": case(Act.HANG, hung=1),
    "pruned": case(
        Act.KILL, generations={G5: ""}, dropped=frozenset({G10}), sealed=(G5, G10, "step-000000013.a0001")
    ),
    "full": case(Act.FULL, Target.DISK, unprotected=1, protected=1, **ON),
    "rotten": case(
        Act.FLIP,
        Target.NEWEST,
        damaged=G10,
        aside=frozenset({G10}),
        generations={G5: ""},
        restored={1: 0, 2: 5},
        first={1: 1, 2: 6},
        code=-signal.SIGKILL,
    ),
    "rotten before": dataclasses.replace(
        case(Act.STOP, generations={G5: ""}, **ON), before=dataclasses.replace(BEFORE, aside=frozenset({G10}))
    ),
    "never trained": case(Act.TERM, steps={2: 11}),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_promised_holds(name: str) -> None:
    """Where all is as promised, the verdict is that it held."""
    row = judge(HELD[name])
    assert (row.verdict, row.reason) == ("held", "")


BROKEN = {
    "more than a cadence and a save": (
        case(Act.KILL, restored={1: 0, 2: 1}, first={2: 2}),
        "12 steps are lost; at most 10",
    ),
    "lost after a notice": (case(Act.TERM), "3 steps are lost; after a notice"),
    "torn": (case(Act.KILL, generations={G5: "", G10: "corrupt: cut"}), f"{G10}: corrupt: cut"),
    "gone": (case(Act.KILL, generations={G5: ""}), f"the newest that was acknowledged is gone: {G10}"),
    "other step": (case(Act.KILL, first={2: 12}), "it went on with step 12 after step 10"),
    "other loss": (
        case(Act.KILL, difference="step 11: loss"),
        "not as in the uninterrupted run: step 11: loss",
    ),
    "left over": (case(Act.KILL, leftovers=("7 (sleep)",)), "left of an earlier attempt: 7 (sleep)"),
    "twice": (case(Act.KILL, twice=("attempts 1 and 2",)), "two trainers at once: attempts 1 and 2"),
    "exit code": (case(Act.TERM, Target.SUPERVISOR, code=143, **SAVED), "outlast run ended with 143, not 75"),
    "ended for nothing": (case(Act.KILL, code=70), "outlast run ended with 70, not 0"),
    "given up": (case(Act.KILL, gave_up="it crashed"), "the run was given up: it crashed"),
    "stuck": (case(Act.KILL, stuck="attempt 2 did not come"), "attempt 2 did not come"),
    "no save": (case(Act.USR1, **ON), "trained on without a save"),
    "deaf": (case(Act.TERM, finished=True, **ON), "told to stop, and trained on to its end"),
    "no hang": (case(Act.HANG), "no hang was noticed"),
    "no word of a full disk": (case(Act.FULL, Target.DISK, **ON), "not marked unprotected"),
    "not again": (case(Act.FULL, Target.DISK, unprotected=1, **ON), "no save succeeded"),
    "not the next best": (
        case(
            Act.FLIP,
            Target.NEWEST,
            damaged=G10,
            aside=frozenset({G10}),
            generations={G5: ""},
            restored={1: 0, 2: 0},
            first={2: 1},
        ),
        "13 steps are lost; at most 8 may be",
    ),
    "trained from rot": (case(Act.FLIP, Target.NEWEST, damaged=G10), "was damaged and not set aside"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_promise_is_named(name: str) -> None:
    """Each promise that was broken makes the verdict, alone and with its reason."""
    made, reason = BROKEN[name]
    row = judge(made)
    assert row.verdict == "did not hold"
    assert reason in row.reason
    assert [check.promise for check in row.checks if check.held is False].__len__() == 1


def test_what_cannot_be_seen_is_undecided() -> None:
    """A job that differs from itself, and one without the library, can't be judged in full; the reason says so."""
    row = judge(case(Act.KILL, difference="step 1: loss", repeatable=False))
    assert (row.verdict, row.reason) == ("undecided", "the job does not repeat itself: step 1: loss")
    row = judge(case(Act.KILL, library=False))
    assert row.verdict == "undecided"
    assert "no trainer attached" in row.reason
    assert judge(case(Act.KILL, library=False, leftovers=("7",))).verdict == "did not hold"


def test_lost_work_is_what_is_trained_again() -> None:
    """Lost are the steps of the struck attempt that come after the one that was restored."""
    assert lost(case(Act.KILL)) == 3
    assert lost(case(Act.USR1, **ON)) == 0
    assert lost(case(Act.KILL, restored={1: 0})) is None


def test_the_whole_is_the_worst() -> None:
    """One broken promise is 1, else one open verdict is 2, else held is 0; nothing tried is undecided."""
    held, broken, unsure = Row("a", "held"), Row("b", "did not hold", reason="x"), Row("c", "undecided")
    passed = Row("d", "not tried")
    assert whole([held, passed]) == (Answer.HELD, "held", "1 of 1 held; 1 could not be tried")
    assert whole([held], left=2)[2] == "1 of 1 held; 2 did not fit into the time"
    assert whole([held, unsure, broken])[:2] == (Answer.DID_NOT_HOLD, "did not hold")
    assert whole([held, broken])[2] == "1 of 2 did not hold: b: x"
    assert whole([held, unsure])[0] == Answer.UNDECIDED
    assert whole([passed])[0] == Answer.UNDECIDED
    assert whole([])[0] == Answer.UNDECIDED


LINES = {n: {"step": n, "loss": n / 2, "rng": {"torch": f"{n:x}", "numpy": "0"}} for n in (1, 2, 3)}
LAST = {**LINES[3], "proof": {"parts": {"model": "ab"}}}
WHOLE = {**LINES, 3: LAST}
MEASURED = Measured(WHOLE, 3, "s", 0.1, 0.1, 1.0, evaluates=False)


def end(final: Final, *, repeatable: bool = True, code: int = 0) -> Row:
    return judge_end("end", code, final, MEASURED, repeatable, bad=[], left=())


def test_the_end_is_held_against_the_uninterrupted_run() -> None:
    """The same steps and the same last state hold; another state, another step or a missing one does not."""
    assert end(Final(WHOLE, "s")).verdict == "held"
    other = {**WHOLE, 3: {**LAST, "proof": {"parts": {"model": "cd"}}}}
    assert end(Final(other, "t")).reason == "the last state is another"
    assert end(Final({1: LINES[1], 3: LAST}, "s")).reason == "the history misses steps"
    assert "step 2: loss" in end(Final({**WHOLE, 2: {**LINES[2], "loss": 9.0}}, "s")).reason
    assert end(Final(WHOLE, "s"), code=70).verdict == "did not hold"
    assert end(Final(other, "t"), repeatable=False).verdict == "undecided"


def test_a_stream_that_nobody_seeds_is_no_difference() -> None:
    """A random stream that the reference never drew from may stand elsewhere, if all parts are the same."""
    moved = {n: {**line, "rng": {**line["rng"], "numpy": "7"}} for n, line in WHOLE.items()}
    assert end(Final(moved, "t")).verdict == "held"
    drawn = {n: {**line, "rng": {**line["rng"], "torch": "7"}} for n, line in WHOLE.items()}
    assert end(Final(drawn, "t")).verdict == "did not hold"
