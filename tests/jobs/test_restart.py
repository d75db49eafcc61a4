"""Restart rules: every ending is classed with its reason; what follows is bounded, counted, explained."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.jobs.endings import AT_137, POLICY, RESTORE, TRAINER, after

from outlast_jobs.restart import (
    Again,
    Counters,
    Done,
    Ending,
    Failure,
    GiveUp,
    Kind,
    Outcome,
    Policy,
    Signature,
    classify,
    decide,
    signature_from_log,
)


def kind(**facts: Any) -> Kind:
    return classify(Ending(**facts), POLICY).kind


def test_every_exit_code_and_signal_is_classed_with_a_reason() -> None:
    """All 256 codes and all signals, attached or not, give one kind, a reason and an action with a reason."""
    ends = [{"code": code} for code in range(256)] + [{"signal": int(s)} for s in signal.Signals]
    for end, attached, noticed in itertools.product(ends, (False, True), (False, True)):
        outcome = classify(Ending(**end, attached=attached, notice=noticed), POLICY)
        assert outcome.reason
        _, action = decide(Counters(), outcome, POLICY, 0.5)
        assert action.reason


@pytest.mark.parametrize("code", range(1, 256))
def test_a_code_alone_never_makes_a_run_done(code: int) -> None:
    """Only 0 is done for a worker that never attached; other codes are crashes, but for TERM's."""
    expected = Kind.SAVED if code == 128 + signal.SIGTERM else Kind.CRASHED
    assert kind(code=code) is expected


def test_an_attached_trainer_is_done_only_on_its_word() -> None:
    """Exit 0 behind a wrapper is a crash; with the word, or a sealed final generation, it is done."""
    assert kind(code=0, attached=True) is Kind.CRASHED
    assert kind(code=0, attached=True, sealed=True) is Kind.CRASHED_PROGRESS
    assert kind(code=0, attached=True, words=frozenset({"saved"}), notice=True) is Kind.SAVED
    assert kind(code=0, attached=True, words=frozenset({"done"})) is Kind.DONE
    assert kind(code=0, attached=True, final_sealed=True) is Kind.DONE
    assert kind(code=0, attached=True, words=frozenset({"done"}), hung="silent") is Kind.DONE


WORDS = [{"words": frozenset({"done"})}, {"final_sealed": True}]


@pytest.mark.parametrize("said", WORDS, ids=["word", "final"])
def test_what_follows_the_training_has_to_go_well_too(said: dict[str, Any]) -> None:
    """After the word, or the final generation, any code but 0 and any signal is not done."""
    ends = [{"code": code} for code in range(1, 256)] + [{"signal": int(s)} for s in signal.Signals]
    for end in ends:
        for more in ({}, {"notice": True}, {"stopped_by": "notice"}, {"sealed": True}):
            outcome = classify(Ending(attached=True, **said, **end, **more), POLICY)
            assert outcome.kind is not Kind.DONE, (end, more)
            _, action = decide(Counters(), outcome, POLICY, 0.5)
            assert isinstance(action, Again) or end == {"code": 65}, (end, more)
    crash = classify(Ending(attached=True, code=1, sealed=True, **said), POLICY)
    assert crash.kind is Kind.CRASHED_PROGRESS
    assert "the training is complete" in crash.reason
    assert classify(Ending(attached=True, code=1, hung="silent", **said), POLICY).kind is Kind.HUNG


def test_an_export_that_always_fails_is_given_up() -> None:
    """Attempts that train nothing and fail after the training are counted as any without progress."""
    policy = Policy(without_progress=3, waiting=0.0)
    export = Ending(attached=True, code=1, words=frozenset({"done"}))
    counters, action = after(replace(export, sealed=True, final_sealed=True), export, export, policy=policy)
    assert isinstance(action, Again)
    counters, action = after(export, policy=policy, counters=counters)
    assert isinstance(action, GiveUp)


def test_exit_0_of_a_worker_that_failed_before_it_attached_is_not_done() -> None:
    """A pipe's 0 after a failure in restore, or in restore without a word, is a crash."""
    assert kind(code=0) is Kind.DONE
    assert kind(code=0, phase="import") is Kind.DONE
    assert kind(code=0, phase="restore") is Kind.CRASHED
    assert kind(code=0, failure=replace(AT_137, phase="import", step=None)) is Kind.CRASHED


def test_75_without_notice_and_without_progress_is_a_crash() -> None:
    """Saved needs a notice or progress; by code or by word."""
    assert kind(code=75, attached=True) is Kind.CRASHED
    assert kind(code=75, attached=True, notice=True) is Kind.SAVED
    assert kind(code=75, attached=True, sealed=True) is Kind.SAVED
    assert kind(code=1, attached=True, words=frozenset({"saved"})) is Kind.CRASHED
    assert kind(code=1, attached=True, words=frozenset({"saved"}), sealed=True) is Kind.SAVED
    assert kind(code=75) is Kind.CRASHED
    assert kind(code=75, alive_seconds=60.0) is Kind.SAVED


def test_a_trainer_that_cannot_save_says_so_by_its_code() -> None:
    """73 of a trainer is named for what it means, so that who gives up on it says why."""
    ending = Ending(code=73, attached=True)
    assert classify(ending, POLICY).reason == "exit 73: the state could not be saved"
    assert classify(replace(ending, attached=False), POLICY).reason == "exit 73"


def test_term_before_attach_is_a_preemption_and_kill_is_a_crash() -> None:
    """TERM with nothing to save is preempted; a signal not of our doing to a trainer is a crash."""
    assert kind(signal=signal.SIGTERM) is Kind.SAVED
    assert kind(signal=signal.SIGTERM, attached=True, notice=True) is Kind.SAVED
    assert kind(signal=signal.SIGTERM, attached=True) is Kind.CRASHED
    for number in set(signal.Signals) - {signal.SIGTERM}:
        assert kind(signal=int(number), notice=True) is Kind.CRASHED


@pytest.mark.parametrize("by", ["person", "restart", "notice"])
def test_a_stop_that_we_asked_for_never_counts_however_it_ended(by: str) -> None:
    """Any signal and any code but 65 (integrity) after our own stop is saved, and starts again at once."""
    for end in [{"code": code} for code in range(256) if code != 65] + [
        {"signal": int(s)} for s in signal.Signals
    ]:
        counters, action = after(Ending(**end, attached=True, stopped_by=by))  # type: ignore[arg-type]
        assert isinstance(action, Again)
        assert action.delay == 0
        assert counters == Counters(preempted=1)


def test_preemptions_never_end_a_run() -> None:
    """A thousand of them: no delay, nothing held against the run."""
    counters, action = after(*[replace(TRAINER, code=75, notice=True)] * 1000)
    assert action == Again(0.0, "newest", "saved after a notice")
    assert counters == Counters(preempted=1000)


def test_an_unexplained_term_at_start_does_not_spin() -> None:
    """TERM before attach that nobody announced waits for the least backoff, and is not counted."""
    counters, action = after(*[Ending(signal=15)] * 50)
    assert isinstance(action, Again)
    assert action.delay == POLICY.backoff[0]
    assert counters.without_progress == 0


def test_the_same_failure_at_the_same_step_twice_is_given_up_at_once() -> None:
    """100 to 137 twice with the same signature; the reason names it."""
    crash = replace(TRAINER, code=1, failure=AT_137, trained=37)
    _, first = after(replace(crash, sealed=True))
    assert isinstance(first, Again)
    _, second = after(replace(crash, sealed=True), crash)
    assert isinstance(second, GiveUp)
    assert "deterministic" in second.reason
    assert "137" in second.reason
    assert "train.py:12" in second.reason


@pytest.mark.parametrize(
    "other",
    [
        replace(TRAINER, code=1, failure=replace(AT_137, step=138)),
        replace(TRAINER, code=1, failure=replace(AT_137, where="train.py:13 in step")),
        replace(TRAINER, code=1, failure=replace(AT_137, exception="KeyError")),
        replace(TRAINER, code=1, failure=replace(AT_137, passing=True)),
        replace(TRAINER, code=1, failure=AT_137, trained=0),
        replace(TRAINER, signal=9, failure=AT_137),
        replace(TRAINER, signal=9),
        replace(TRAINER, code=1, failure=replace(AT_137, step=None)),
    ],
)
def test_anything_else_is_not_deterministic(other: Ending) -> None:
    """Another step, place or class, a passing kind, no step trained, a signal: tried again."""
    crash = replace(TRAINER, code=1, failure=AT_137)
    assert isinstance(after(crash, other)[1], Again)
    assert isinstance(after(other, crash)[1], Again)


def test_a_preemption_in_between_does_not_hide_a_deterministic_failure() -> None:
    """Twice in a row is counted over failures, not over attempts."""
    crash = replace(TRAINER, code=1, failure=AT_137)
    assert isinstance(after(crash, replace(TRAINER, code=75, notice=True), crash)[1], GiveUp)


def test_random_crashes_with_progress_go_on_for_ever_at_the_least_delay() -> None:
    """Progress resets tries, waiting and backoff."""
    endings = [
        replace(TRAINER, code=1, sealed=True, failure=replace(AT_137, step=step)) for step in range(500)
    ]
    counters, action = after(*endings)
    assert isinstance(action, Again)
    assert action.delay <= POLICY.backoff[0]
    assert (counters.crashed_progress, counters.without_progress) == (500, 0)


@settings(deadline=None)
@given(
    st.integers(1, 10),
    st.floats(0, 300),
    st.tuples(st.floats(0, 10), st.floats(0, 100)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5),
    st.sampled_from(
        [Ending(code=1), replace(TRAINER, signal=9), replace(TRAINER, code=75), Ending(hung="x")]
    ),
)
def test_a_loop_without_progress_ends_after_both_limits_and_never_before(
    tries: int, waiting: float, backoff: tuple[float, float], draws: list[float], ending: Ending
) -> None:
    """Given up at the first failure with N tries and the waiting spent; delays stay within the bounds."""
    policy = Policy(tries, waiting, (max(backoff[0], 0.5), max(backoff[1], 0.5)))
    counters, waited = Counters(), 0.0
    for count in itertools.count(1):
        counters, action = decide(counters, classify(ending, policy), policy, draws[count % len(draws)])
        if isinstance(action, GiveUp):
            break
        if not isinstance(action, Again):
            raise TypeError(action)
        assert policy.backoff[0] <= action.delay <= policy.backoff[1]
        assert count < tries or waited < waiting
        waited += action.delay
    assert count >= tries
    assert waited >= waiting
    assert str(count) in action.reason


def test_the_default_loop_has_growing_delays_and_ends_within_a_quarter_of_an_hour() -> None:
    """A worker that exits 1 at import: 1, 2, 4 ... 60 s, at least 5 starts and 10 minutes."""
    counters, delays = Counters(), []
    while True:
        counters, action = decide(counters, classify(Ending(code=1), POLICY), POLICY, 0.5)
        if not isinstance(action, Again):
            break
        delays.append(action.delay)
    assert isinstance(action, GiveUp)
    assert delays[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert 600 <= sum(delays) < 700


def test_no_backoff_at_all_still_ends() -> None:
    """Where nothing is ever waited for, the number of tries alone ends the loop."""
    policy = Policy(3, 600, (0.0, 0.0))
    assert isinstance(after(*[Ending(code=1)] * 2, policy=policy)[1], Again)
    assert isinstance(after(*[Ending(code=1)] * 3, policy=policy)[1], GiveUp)


def test_never_on_gives_up_at_once_and_free_on_does_not_count() -> None:
    """Both match the exit status as a shell shows it, so 137 is SIGKILL too."""
    policy = Policy(never_on=(2,), free_on=(137,))
    assert isinstance(after(Ending(code=2), policy=policy)[1], GiveUp)
    assert isinstance(after(replace(TRAINER, code=2, sealed=True), policy=policy)[1], GiveUp)
    for free in (Ending(code=137), Ending(signal=9)):
        counters, action = after(*[free] * 100, policy=policy)
        assert isinstance(action, Again)
        assert action.delay > 0
        assert counters == Counters(preempted=100)


def test_never_on_and_free_on_do_not_touch_what_was_said() -> None:
    """A code in either list changes nothing for done, saved or an ending of ours."""
    policy = Policy(never_on=tuple(range(256)))
    assert isinstance(after(Ending(code=0), policy=policy)[1], Done)
    assert isinstance(after(replace(TRAINER, code=75, notice=True), policy=policy)[1], Again)
    assert isinstance(after(replace(TRAINER, code=75, hung="silent"), policy=policy)[1], Again)


KILLED = Ending(signal=9, attached=True, trained=3)
REFUSED = Failure(
    "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried", "x.py:1", 5, "train"
)


@pytest.mark.parametrize(
    ("ending", "tight"),
    [
        (KILLED, True),
        (replace(KILLED, signal=None, code=137), True),
        (replace(KILLED, sealed=True), False),
        (replace(KILLED, sealed=True, oom_kills=1), True),
        (replace(TRAINER, code=1, oom_kills=1, sealed=True), True),  # a loader process of it was killed
        (replace(TRAINER, code=1, failure=REFUSED), True),
        (replace(TRAINER, code=1, failure=replace(AT_137, exception="MemoryError")), True),
        (replace(TRAINER, code=1, failure=AT_137), False),
        (replace(KILLED, hung="silent"), False),
        (replace(KILLED, stopped_by="notice"), False),
        (replace(TRAINER, code=75, words=frozenset({"saved"}), notice=True, oom_kills=1), False),
    ],
)
def test_an_attempt_that_may_have_died_of_our_copies_is_followed_by_one_without(
    ending: Ending, tight: bool
) -> None:
    """It stays so through ends that tell nothing, until one with progress; a preemption alone is no progress."""
    counters, _ = after(ending)
    assert counters.tight is (tight and ending.short), "one signal is anybody's"
    ending_twice = (ending, ending)
    assert after(*ending_twice)[0].tight is tight
    preempted = Ending(code=75, attached=True, notice=True, words=frozenset({"saved"}))
    assert after(*ending_twice, preempted)[0].tight is tight
    assert not after(*ending_twice, replace(preempted, sealed=True))[0].tight


def test_a_lack_of_memory_is_told_and_never_deterministic() -> None:
    """What the kernel counts stands in the reason; the same failure at the same step may still be memory's."""
    assert "the kernel was out of memory" in classify(replace(KILLED, oom_kills=1), POLICY).reason
    assert "the kernel" not in classify(KILLED, POLICY).reason
    lost = replace(TRAINER, code=1, failure=AT_137)
    assert isinstance(after(lost, lost)[1], GiveUp)
    assert isinstance(after(*2 * [replace(lost, oom_kills=1)])[1], Again)
    log = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nRuntimeError: ' + REFUSED.message
    found = signature_from_log(log)
    assert found is not None
    assert found.passing


def test_a_hang_counts_as_hung_and_as_a_try() -> None:
    """Its code after our TERM and KILL says nothing; with progress it resets like any other failure."""
    hang = replace(TRAINER, signal=9, hung="no step for 600 s")
    counters, action = after(hang)
    assert isinstance(action, Again)
    assert (counters.hung, counters.crashed, counters.without_progress) == (1, 0, 1)
    counters, _ = after(hang, replace(hang, sealed=True))
    assert (counters.hung, counters.without_progress) == (2, 0)


signatures = st.none() | st.builds(
    Signature, st.text(max_size=9), st.text(max_size=9), st.none() | st.integers()
)


@settings(deadline=None)
@given(
    st.builds(
        Counters,
        preempted=st.integers(0, 99),
        waited=st.floats(0, 1e4),
        last=signatures,
        stepped_back=signatures,
        sick_steps=st.lists(st.integers(0, 99), max_size=4).map(tuple),
        tight=st.booleans(),
    )
)
def test_counters_survive_the_journal(counters: Counters) -> None:
    """To plain values and back is the same; unknown and missing names do no harm."""
    plain = counters.to_dict()
    assert Counters.from_dict(plain) == counters
    assert Counters.from_dict({**plain, "later": 1}) == counters
    assert Counters.from_dict({}) == Counters()


facts = st.builds(
    Ending,
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    attached=st.booleans(),
    words=st.frozensets(st.sampled_from(["done", "saved"])),
    failure=st.none() | st.just(AT_137) | st.just(RESTORE.failure),
    phase=st.none() | st.sampled_from(["import", "restore", "train"]),
    notice=st.booleans(),
    sealed=st.booleans(),
    trained=st.integers(0, 3),
    alive_seconds=st.floats(0, 100),
    hung=st.none() | st.just("silent"),
    bad=st.none() | st.just("digest"),
    refused=st.none() | st.just("strict"),
    final_sealed=st.booleans(),
    sick_step=st.none() | st.integers(0, 3),
    oom_kills=st.integers(0, 2),
    stopped_by=st.none() | st.sampled_from(["person", "restart", "notice"]),
)


@settings(deadline=None)
@given(st.lists(facts, min_size=1, max_size=30))
def test_any_history_is_decided_with_a_reason_and_without_spinning(endings: list[Ending]) -> None:
    """Rules are total; only what is announced, or sets a generation aside, starts again without a delay."""
    counters = Counters()
    for ending in endings:
        outcome = classify(ending, POLICY)
        counters, action = decide(counters, outcome, POLICY, 0.5)
        assert outcome.reason
        assert action.reason
        if isinstance(action, Again) and action.delay == 0:
            explained = ending.notice or ending.stopped_by or ending.progress or ending.bad
            assert explained
        assert Counters.from_dict(counters.to_dict()) == counters


def test_an_outcome_keeps_the_facts_it_was_classed_by() -> None:
    """So that the journal and the next decision need nothing else."""
    outcome = classify(TRAINER, POLICY)
    assert isinstance(outcome, Outcome)
    assert outcome.ending == TRAINER
