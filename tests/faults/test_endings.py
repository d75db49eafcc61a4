"""Every exit code and every signal of a worker, in every circumstance: how it is classed and what follows."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import OUTLAST
from tests.faults.cells import live
from tests.faults.scale import WHOLE, chance, scaled, told
from tests.waiting import wait_until

from outlast_jobs import restart
from outlast_jobs.cadence import SavePolicy
from outlast_jobs.ending import Ending, Kind, Policy, classify
from outlast_jobs.failure import Failure
from outlast_jobs.restart import Again, Counters, GiveUp, HoldSick
from outlast_supervisor import actions as act
from outlast_supervisor.conclude import conclude
from outlast_supervisor.policy import Context
from outlast_supervisor.policy import Policy as JobPolicy
from outlast_supervisor.states import Choosing, Finished, Ledger, Waiting
from outlast_supervisor.states import Ending as EndingState

CODES = [*[(code, None) for code in range(256)], *[(None, number) for number in range(1, 65)]]
OURS = Failure("ValueError", "x", "a.py:1", 7, "train")
PASSING = Failure("OSError", "x", "a.py:2", 7, "train", passing=True)
RESTORING = Failure("ValueError", "x", "a.py:3", None, "restore")
TERM = 128 + signal.SIGTERM
POLICIES = [
    Policy(),
    Policy(never_on=(1, 75, 0), free_on=(137, 3), sick="continue"),
    Policy(without_progress=2, waiting=0.0, backoff=(0.0, 0.0)),
]
COUNTERS = [
    Counters(),
    Counters(without_progress=4, waited=10_000.0, last=OURS.signature, last_trained=5),
    Counters(without_progress=4, waited=599.0, stepped_back=RESTORING.signature, sick_steps=(7,)),
]


def _circumstances() -> Iterator[dict[str, object]]:
    words = (frozenset[str](), frozenset({"saved"}), frozenset({"done"}), frozenset({"done", "saved"}))
    for attached, notice, by, said, sealed, final, failure in itertools.product(
        (False, True),
        (False, True),
        (None, "notice", "person", "restart"),
        words,
        (False, True),
        (False, True),
        (None, OURS, PASSING, RESTORING),
    ):
        yield {
            "attached": attached,
            "notice": notice or by == "notice",
            "stopped_by": by,
            "words": said,
            "sealed": sealed,
            "final_sealed": final,
            "failure": failure,
            "phase": failure.phase if failure else "train",
            "trained": 3 if sealed else 0,
            "alive_seconds": 100.0 if sealed else 1.0,
        }


def _endings() -> Iterator[Ending]:
    random = chance("endings")
    odd: list[dict[str, object]] = [
        {},
        {},
        {},
        {"hung": "silent"},
        {"bad": "sha256"},
        {"refused": "no"},
        {"sick_step": 7},
    ]
    around = [*_circumstances()]
    for code, number in CODES:
        for facts in around if WHOLE or code in (0, 75) or number == 15 else random.sample(around, 12):
            for more in odd[2:] if WHOLE else [random.choice(odd)]:
                yield Ending(code=code, signal=number, **{**facts, **more})  # type: ignore[arg-type]


def test_every_ending_has_one_kind_and_what_must_follow_from_it() -> None:
    """Done needs exit 0 and a word; what was stopped or warned is saved; only an unasked end is a crash."""
    tried = 0
    for ending in _endings():
        for policy in POLICIES:
            tried += 1
            kind = classify(ending, policy).kind
            judged = ending.bad or ending.refused or (ending.sick_step and policy.sick == "stop")
            if kind is Kind.DONE:
                assert ending.code == 0, ending
                assert ending.signal is None, ending
                assert ending.complete or not ending.attached, ending
                assert not ending.bad and not ending.refused, ending  # noqa: PT018
            told_to = ending.notice and (ending.code == 75 or ending.status == TERM)
            plain = kind is not Kind.DONE and not judged and not ending.hung and ending.code != 65
            if plain and (ending.stopped_by or told_to):
                said = "saved" in ending.words
                assert kind is Kind.SAVED or (ending.failure and not ending.stopped_by and not said), ending
            if kind in (Kind.CRASHED, Kind.CRASHED_PROGRESS):
                assert not ending.stopped_by, ending
                assert (
                    (kind is Kind.CRASHED_PROGRESS) == ending.progress
                    or "saved" in ending.words
                    or (ending.code == 75)
                ), ending
    told("endings classed", tried)


def test_no_count_and_no_code_gives_up_what_was_preempted() -> None:
    """Saved and bad generations always start again; giving up needs its budget, a rule or a proof."""
    tried = 0
    for ending in _endings():
        for policy, counters in itertools.product(POLICIES, COUNTERS):
            tried += 1
            outcome = classify(ending, policy)
            after, action = restart.decide(counters, outcome, policy, 0.5)
            case = (ending, policy, counters, outcome.kind, after, action)
            if outcome.kind in (Kind.SAVED, Kind.BAD_GENERATION):
                assert isinstance(action, Again), case
                assert after.without_progress <= counters.without_progress, case
            if isinstance(action, Again):
                assert 0.0 <= action.delay <= max(policy.backoff), case
            if isinstance(action, GiveUp):
                assert _may_give_up(ending, policy, counters, after), case
            if isinstance(action, HoldSick):
                assert ending.sick_step in counters.sick_steps, case
            moved = sum(
                getattr(after, name) - getattr(counters, name)
                for name in ("preempted", "crashed_progress", "crashed", "hung")
            )
            assert moved in (0, 1), case
            assert moved == 1 or outcome.kind not in (Kind.SAVED, Kind.CRASHED, Kind.HUNG), case
    told("restarts decided", tried)


def _may_give_up(ending: Ending, policy: Policy, before: Counters, after: Counters) -> bool:
    spent = after.without_progress >= policy.without_progress and (
        after.waited >= policy.waiting or policy.backoff[1] <= 0
    )
    failure = ending.failure
    twice = (
        failure is not None
        and not failure.passing
        and ending.signal is None
        and before.last == failure.signature
    )
    restoring = failure is not None and before.stepped_back is not None and failure.phase == "restore"
    return spent or ending.status in policy.never_on or (twice and ending.trained >= 1) or restoring


def test_every_end_of_a_worker_becomes_a_documented_exit_or_a_next_attempt() -> None:
    """From the state after a worker's end the supervisor starts again, waits, or exits with a known code."""
    tried = 0
    for code, number in CODES:
        for why in ("", "notice", "person", "restart", "hung", "audit"):
            for ledger in (
                Ledger(2),
                Ledger(2, leaving="SIGTERM"),
                Ledger(2, holding="ann", stop_request="r"),
            ):
                tried += 1
                worker = live(notice=ledger.leaving, hung="silent" if why == "hung" else "")
                state = EndingState(
                    ledger, worker, why, "why", code, number, 1000.0, None, None, "look", True
                )
                job = JobPolicy(Policy(), SavePolicy(None, 600.0))
                after, actions = conclude(ledger, state, Context(job, 1000.0, 0.5))
                case = (code, number, why, ledger, after)
                assert isinstance(after, (Choosing, Waiting, Finished)), case
                answered = [a.request for a in actions if isinstance(a, act.Answer)]
                assert answered == ([ledger.stop_request] if ledger.stop_request else []), case
                if isinstance(after, Finished):
                    assert after.code in (0, 65, 70, 75), case
                    assert (after.code == 0) <= (code == 0), case
                    assert after.code != 75 or ledger.leaving, case
                else:
                    assert not ledger.leaving, case
                    assert not ledger.holding, case
    told("ends concluded", tried)


def _as_a_shell(code: int, signal_number: int | None) -> str:
    return f"kill -{signal_number} $$" if signal_number else f"exit {code}"


# what stops a shell, or is nothing to it, does not end it
_ENDS = [n for n in range(1, 32) if n not in (17, 18, 19, 20, 21, 22, 23, 28)]
REAL = [
    (0, None),
    (1, None),
    (65, None),
    (70, None),
    (75, None),
    (137, None),
    (255, None),
    (0, 9),
    (0, 15),
    (0, 11),
]


@pytest.mark.parametrize("part", range(4))
def test_real_ends_are_classed_as_the_table_says(tmp_path: Path, part: int) -> None:
    """What a real process ends with, by code or by signal, arrives as it was and is classed by it alone."""
    every = [*[(code, None) for code in range(256)], *[(0, number) for number in _ENDS]]
    for code, number in scaled(REAL, every)[part::4]:
        folder = tmp_path / f"{code}-{number}"
        folder.mkdir()
        numbers = ", ".join(map(str, range(1, 256)))  # any crash is the last one
        (folder / "job.yaml").write_text(
            f"name: x\ncommand: [sh, -c, {_as_a_shell(code, number)!r}]\nrestart: {{never_on: [{numbers}]}}\n"
        )
        run = subprocess.Popen(
            [OUTLAST, "run", "job.yaml", "--quiet"],
            cwd=folder,
            stderr=subprocess.DEVNULL,
        )
        try:
            ended = _first_end(folder / "runs" / "x" / "journal", run)
            assert (ended["code"], ended["signal"]) == ((None, number) if number else (code, None))
            facts = Ending(code=ended["code"], signal=ended["signal"], phase="import", alive_seconds=0.1)
            assert ended["outcome"] == classify(facts, Policy()).kind, (code, number)
        finally:
            # one that counts as preempted is started again and again; for others it comes in their last moments,
            # and must not change what they say
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
            run.wait(60)
        if code == 0 and not number:
            assert run.returncode == 0
        elif ended["outcome"] == "crashed":
            assert run.returncode == 70


def _first_end(journal: Path, run: subprocess.Popen[bytes]) -> dict[str, object]:
    def seen() -> list[dict[str, object]]:
        lines = [line for path in journal.glob("*.jsonl") for line in path.read_text().splitlines(True)]
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record["data"] for record in records if record["event"] == "attempt_ended"]

    return wait_until(seen, 60, f"the end of the worker of supervisor {run.pid} on {os.fspath(journal)}")[0]
