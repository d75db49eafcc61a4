"""The state table: total, pure, and never without a way on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.supervisor.tables import (
    ENDED,
    FRESH,
    ME,
    RESUMED,
    STARTED,
    TRAINER,
    context,
    live,
    policy,
    running,
    walk,
)

from outlast_jobs.contract import ExitCode
from outlast_jobs.restart import Counters, Failure
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.rules_begin import begin
from outlast_supervisor.states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Ledger,
    Running,
    Starting,
    State,
    Stopping,
    Waiting,
    shifted,
)
from outlast_supervisor.table import EVENTS, STATES, TABLE, decide
from outlast_supervisor.timers import next_due


def ending(**changes: object) -> Ending:
    base = Ending(Ledger(attempt=1), live(), "", "", 1, None, 5.0, None, None, "look", False)
    return replace(base, **changes)


SAMPLES: dict[type, list[State]] = {
    Clearing: [
        Clearing(Ledger(), "start", 1.0, None, 30.0, "look"),
        Clearing(Ledger(), "start", 1.0, 2.0, 30.0, "term"),
        Clearing(Ledger(holding="me", stop_request="r0"), "start", None, None, 30.0, "look"),
    ],
    Choosing: [Choosing(Ledger(), "start", 0, 60.0, None)],
    Launching: [Launching(Ledger(attempt=1), FRESH, "start")],
    Starting: [Starting(Ledger(attempt=1), live()), Starting(Ledger(attempt=2), live(RESUMED))],
    Running: [running(), running(RESUMED), running(save_requests=("r",), save_wanted=("a",))],
    Stopping: [
        Stopping(Ledger(attempt=1), live(), "notice", "SIGTERM", 30.0, 32.0),
        Stopping(Ledger(attempt=1), live(hung="hung"), "hung", "silent", 1.0, 11.0),
        Stopping(Ledger(attempt=1), live(), "refused", "no", None, None, 6.0),
    ],
    Ending: [ending(), ending(examining=True), ending(signalled="term", kill_at=6.0, look_at=5.1)],
    Waiting: [Waiting(Ledger(attempt=1), 7.0, "crashed")],
    Finished: [Finished(Ledger(attempt=1), 0, "done")],
}


HAPPENINGS: dict[type, list[ev.Event]] = {
    ev.Tick: [ev.Tick()],
    ev.Paused: [ev.Paused(5.0)],
    ev.LeftoversGone: [ev.LeftoversGone()],
    ev.LeftoversRemain: [ev.LeftoversRemain((7, 8)), ev.LeftoversRemain(())],
    ev.Chosen: [FRESH, RESUMED],
    ev.Unusable: [ev.Unusable("all corrupt")],
    ev.ChooseFailed: [ev.ChooseFailed("EIO", "")],
    ev.Spawned: [ev.Spawned(ME)],
    ev.SpawnFailed: [ev.SpawnFailed("ENOENT")],
    ev.RunGone: [ev.RunGone("the run directory was removed")],
    ev.Attached: [ev.Attached(TRAINER, 0, 0, None), ev.Attached(TRAINER, 0, 100, RESUMED.name)],
    ev.Reported: [ev.Reported(1, 10, "0.5", "train"), ev.Reported(None, None, None, "eval")],
    ev.Saving: [ev.Saving(10)],
    ev.Sealed: [ev.Sealed("step-000000101.a0002", 101, 10, 0.1)],
    ev.SaveFailed: [ev.SaveFailed("ENOSPC")],
    ev.SaveUnheard: [ev.SaveUnheard("SIGUSR1")],
    ev.Looked: [
        ev.Looked(0, None, None, None),
        ev.Looked(140, 0.1, ev.Sealed("step-000000130.a0002", 130, 10, 0.1), 0.5),
    ],
    ev.Wrote: [ev.Wrote("checkpoint-130", 130, 0.5), ev.Wrote("checkpoint-90", 90, 0.5)],
    ev.Verified: [ev.Verified("step-000000101.a0002", True)],
    ev.Rejected: [ev.Rejected("step-000000101.a0002", "sha256")],
    ev.Said: [ev.Said("done"), ev.Said("saved")],
    ev.Raised: [ev.Raised(Failure("ValueError", "x", "a.py:1", 5, "train"))],
    ev.FoundBad: [ev.FoundBad("step-000000100.a0001", "sha256")],
    ev.Refused: [ev.Refused("identity")],
    ev.Sick: [ev.Sick(5)],
    ev.Drifted: [ev.Drifted(("threads 1 -> 2",))],
    ev.TrainerGone: [ev.TrainerGone(TRAINER)],
    ev.WorkerExited: [ev.WorkerExited(0, None), ev.WorkerExited(None, 9)],
    ev.Examined: [ev.Examined(None, False, 0, None, ""), ev.Examined(101, True, 101, None, "tail")],
    ev.Notice: [ev.Notice("SIGTERM")],
    ev.Warned: [ev.Warned("SIGUSR1")],
    ev.StopNow: [ev.StopNow("a second SIGINT")],
    ev.SaveAsked: [ev.SaveAsked("me", ""), ev.SaveAsked("me", "r1")],
    ev.StopAsked: [ev.StopAsked("me", "r2")],
    ev.RestartAsked: [ev.RestartAsked("me", "r3")],
    ev.DeadlineKnown: [ev.DeadlineKnown(100.0, "test"), ev.DeadlineKnown(None, "test")],
    ev.Audited: [ev.Audited("2 of 2", 2, True), ev.Audited("differs", 2, False)],
}


ALL = [(s, e) for state in STATES for s in SAMPLES[state] for event in EVENTS for e in HAPPENINGS[event]]


def test_every_state_and_event_has_a_cell() -> None:
    """The table has a cell for every pair, and no other."""
    assert set(TABLE) == {(state, event) for state in STATES for event in EVENTS}


@pytest.mark.parametrize("strict", [False, True])
def test_every_cell_gives_a_state_and_actions(strict: bool) -> None:
    """No pair of a state and an event raises, and each gives a state and known actions."""
    ctx = context(audit="stop", shielded=False, on_usr1="stop") if strict else context()
    for state, event in ALL:
        after, actions = decide(state, event, ctx)
        assert isinstance(after, STATES), (state, event)
        assert all(isinstance(action, act.Action) for action in actions), (state, event)


def test_decisions_are_pure() -> None:
    """The same state, event and context give the same decision."""
    for state, event in ALL:
        assert decide(state, event, context()) == decide(state, event, context())


def _can_go_on(state: State, actions: tuple[act.Action, ...]) -> bool:
    """Something will bring the next event: a timer, a helper's answer, or the death of a process."""
    if isinstance(state, Finished) or next_due(state, policy(), 5.0) is not None:
        return True
    if isinstance(state, (Choosing, Launching)):
        return True  # a helper, or the loop itself, always answers
    if isinstance(state, Stopping):
        return False  # it has been told: what then does not end needs a timer that tells it again
    return isinstance(state, (Starting, Running, Ending))  # a process that lives, or a look at it


def test_no_decision_leaves_a_state_that_nothing_ends() -> None:
    """After every cell there is a timer, an answer to come, or a process whose end will be told."""
    for state, event in ALL:
        after, actions = decide(state, event, context())
        assert _can_go_on(after, actions), (state, event)
        if isinstance(after, Choosing) and not isinstance(state, Choosing):
            assert any(isinstance(a, act.Choose) for a in actions), (state, event)
        if isinstance(after, Launching) and not isinstance(state, Launching):
            assert any(isinstance(a, act.Spawn) for a in actions), (state, event)
        if isinstance(after, Finished) and not isinstance(state, Finished):
            assert any(isinstance(a, act.Exit) for a in actions), (state, event)


def test_a_worker_is_launched_only_where_none_can_live() -> None:
    """Spawn is ordered only on the way from Choosing to Launching, so two attempts are never alive."""
    for state, event in ALL:
        after, actions = decide(state, event, context())
        if any(isinstance(a, act.Spawn) for a in actions):
            assert isinstance(state, Choosing)
            assert isinstance(after, Launching)


def test_a_notice_in_any_state_ends_in_75_or_waits_for_the_worker() -> None:
    """TERM is never swallowed: without a worker the exit is 75 at once, with one it is remembered."""
    for state in (s for samples in SAMPLES.values() for s in samples if not isinstance(s, Finished)):
        after, actions = decide(state, ev.Notice("SIGTERM"), context())
        assert after.ledger.leaving == "SIGTERM"
        if isinstance(after, Finished):
            assert after.code == (ExitCode.HELD if state.ledger.holding else ExitCode.SAVED)
            assert any(isinstance(a, act.Exit) for a in actions)


def test_a_paused_state_keeps_its_distances() -> None:
    """Time that stood still moves every instant of a state, and the deadline by nothing."""
    state = running(ledger=Ledger(deadline=50.0), asked_at=3.0, progress_at=2.0)
    after = shifted(state, 10.0)
    assert after.live.progress_at == 12.0
    assert after.live.asked_at == 13.0
    assert after.ledger.deadline == 50.0


def test_done_needs_the_trainers_word() -> None:
    """A worker that attached and exits 0 is done with the word, and crashed without it."""
    said, _ = walk(*STARTED, ev.Said("done"), ev.WorkerExited(0, None), *ENDED)
    silent, _ = walk(*STARTED, ev.WorkerExited(0, None), *ENDED)
    assert isinstance(said, Finished)
    assert said.code == ExitCode.DONE
    assert isinstance(silent, Waiting)


def test_a_failure_after_the_last_word_is_not_done() -> None:
    """A worker that fails after its word starts again, from its final generation, and its log says why."""
    why = Failure("OSError", "no space", "export.py:7 in save", passing=True)
    examined = ev.Examined(10, True, 10, why, "tail")
    state, actions = walk(
        *STARTED,
        ev.Sealed("step-000000010.a0001", 10, 1, 0.1),
        ev.Said("done"),
        ev.WorkerExited(1, None),
        ev.LeftoversGone(),
        examined,
    )
    assert isinstance(state, Waiting)
    assert state.ledger.resume == "newest"
    [ended] = [a for a in actions if isinstance(a, act.Note) and a.event == "attempt_ended"]
    assert "complete" in ended.data["reason"]
    assert ended.data["signature"] == str(why.signature)


def test_a_worker_that_trained_on_after_its_last_step_is_not_done() -> None:
    """A script with two loops seals a final generation after the first, and exits 0 in the second behind a wrapper."""
    for last, kind in ((30, Finished), (40, Waiting)):
        examined = ev.Examined(30, True, last, None, "tail")
        state, _ = walk(
            *STARTED,
            ev.Sealed("step-000000030.a0001", 30, 1, 0.1),
            ev.WorkerExited(0, None),
            ev.LeftoversGone(),
            examined,
        )
        assert isinstance(state, kind), last


def test_a_delay_counts_from_the_workers_end() -> None:
    """What it takes to look at an attempt's traces is part of the wait; a wait that is over is no wait."""
    examined = ev.Examined(None, False, 0, None, "")
    ended = replace(ending(examining=True), code=1, ended_at=100.0)
    for late, expected in ((0.05, Waiting), (3000.0, Choosing)):
        ctx = context(100.0 + late)
        state, _ = decide(ended, examined, ctx)
        assert isinstance(state, expected)
    at_once, _ = decide(ended, examined, context(100.0))
    late_by, _ = decide(ended, examined, context(100.2))
    assert isinstance(at_once, Waiting)
    assert isinstance(late_by, Waiting)
    assert at_once.until_at == late_by.until_at > 100.2


def test_a_saved_worker_after_a_notice_is_75_for_the_caller() -> None:
    """TERM to the supervisor, a save, exit 75 of the worker: exit 75."""
    state, _ = walk(
        *STARTED,
        ev.Notice("SIGTERM"),
        ev.Sealed("step-000000003.a0001", 3, 1, 0.1),
        ev.Said("saved"),
        ev.WorkerExited(75, None),
        *ENDED,
    )
    assert isinstance(state, Finished)
    assert state.code == ExitCode.SAVED


def test_a_preempted_worker_is_started_again_at_once() -> None:
    """TERM to the worker alone, saved with progress: the next attempt follows without a delay."""
    state, _ = walk(
        *STARTED,
        ev.Sealed("step-000000003.a0001", 3, 1, 0.1),
        ev.Said("saved"),
        ev.WorkerExited(75, None),
        *ENDED,
    )
    assert isinstance(state, Choosing)
    assert state.ledger.counters.preempted == 1


def test_a_bad_generation_is_set_aside_before_the_next_choice() -> None:
    """What the trainer found corrupt is renamed first, then the next one is chosen, at once and uncounted."""
    state, actions = walk(
        ev.LeftoversGone(),
        RESUMED,
        ev.Spawned(ME),
        ev.FoundBad(RESUMED.name or "", "sha256"),
        ev.WorkerExited(65, None),
        *ENDED,
    )
    assert isinstance(state, Choosing)
    order = [type(a) for a in actions if isinstance(a, (act.SetAside, act.Choose))]
    assert order == [act.Choose, act.SetAside, act.Choose]
    assert state.ledger.counters == Counters()


def test_prune_never_runs_while_a_generation_is_being_chosen() -> None:
    """A verification that ends while the next start is chosen deletes nothing."""
    _, actions = decide(SAMPLES[Choosing][0], ev.Verified("step-000000101.a0002", True), context())
    assert not any(isinstance(a, act.Prune) for a in actions)


def test_a_stop_by_a_person_outlives_a_notice() -> None:
    """A run that a person stops while nothing runs is held, also where TERM comes before the hold."""
    clearing, _ = begin(Ledger(), 0.0)
    remembered, _ = decide(clearing, ev.StopAsked("me", "r1"), context())
    after, actions = decide(remembered, ev.Notice("SIGTERM"), context())
    assert isinstance(after, Finished)
    assert after.code == ExitCode.HELD
    assert act.Answer("r1", True, "stopped; the run is held") in actions
    for state in (SAMPLES[Choosing][0], SAMPLES[Waiting][0]):
        held, _ = decide(state, ev.StopAsked("me", "r1"), context())
        assert isinstance(held, Finished)
        assert held.code == ExitCode.HELD


def test_every_stop_request_is_answered() -> None:
    """Of two that are made while the worker ends, the second is answered at once and the first at the end."""
    state: State = SAMPLES[Stopping][0]
    state, _ = decide(state, ev.StopAsked("me", "first"), context())
    state, actions = decide(state, ev.StopAsked("you", "second"), context())
    assert [a.request for a in actions if isinstance(a, act.Answer)] == ["second"]
    for event in (ev.WorkerExited(75, None), ev.LeftoversGone(), ev.Examined(None, False, 0, None, "")):
        state, actions = decide(state, event, context())
    assert [a.request for a in actions if isinstance(a, act.Answer)] == ["first"]


def test_nothing_is_concluded_before_what_an_attempt_left_is_gone() -> None:
    """An answer about the traces of an attempt counts only once nothing of it lives."""
    early = ending()
    after, actions = decide(early, ev.Examined(None, False, 0, None, ""), context())
    assert after == early
    assert not actions


def test_kill_is_sent_until_it_is_heeded() -> None:
    """A process that was overlooked when all were killed is killed a second later."""
    for state in (decide(SAMPLES[Stopping][0], ev.Tick(), context(33.0))[0],
                  decide(running(), ev.StopNow("a second SIGINT"), context(33.0))[0]):  # fmt: skip
        due = next_due(state, policy(), 33.0)
        assert due is not None
        again, actions = decide(state, ev.Tick(), context(due))
        assert actions == (act.SignalAll("kill"),)
        assert next_due(again, policy(), due) is not None


def test_a_dead_disk_does_not_hold_a_supervisor_that_has_to_go() -> None:
    """After a notice the traces of the attempt are waited for ten seconds; without one, for ever."""
    state, _ = decide(ending(), ev.LeftoversGone(), context(5.0))
    assert next_due(state, policy(), 5.0) is None
    state, _ = decide(state, ev.Notice("SIGTERM"), context(6.0))
    due = next_due(state, policy(), 6.0)
    assert due == 15.0
    after, _ = decide(state, ev.Tick(), context(due))
    assert isinstance(after, Finished)
    assert after.code == ExitCode.SAVED


def test_a_bare_worker_behind_a_shell_has_the_whole_grace() -> None:
    """A worker that never attached and is told to stop may be saving after its shell is gone."""
    told = ending()
    remain = ev.LeftoversRemain((7,))
    by_itself, _ = decide(told, remain, context(5.0))
    stopped, _ = decide(replace(told, why="notice"), remain, context(5.0))
    assert isinstance(by_itself, Ending)
    assert isinstance(stopped, Ending)
    assert by_itself.kill_at == 5.0 + 5.0
    assert stopped.kill_at == 5.0 + policy().grace


def test_a_deadline_ends_a_wait() -> None:
    """A supervisor whose end comes during a backoff ends then, and starts no attempt."""
    state = Waiting(Ledger(deadline=10.0, deadline_source="time_limit"), 60.0, "crashed")
    assert next_due(state, policy(), 5.0) == 10.0
    after, _ = decide(state, ev.Tick(), context(10.0))
    assert isinstance(after, Finished)
    assert after.code == ExitCode.SAVED


def test_a_second_interrupt_waits_for_nothing() -> None:
    """A supervisor that waits for a hook or a verification at its end goes at once."""
    _, actions = decide(SAMPLES[Finished][0], ev.StopNow("a second SIGINT"), context())
    assert actions == (act.Exit(0, "done", at_once=True),)


def test_a_run_whose_directory_is_gone_cannot_be_asked_for_again() -> None:
    """Where the run directory was removed or replaced the worker is killed, and the exit is 73, not 75."""
    state, actions = decide(running(), ev.RunGone("removed"), context())
    assert act.SignalAll("kill") in actions
    for event in (ev.WorkerExited(None, 9), ev.LeftoversGone(), ev.Examined(None, False, 0, None, "")):
        state, _ = decide(state, event, context())
    assert isinstance(state, Finished)
    assert state.code == ExitCode.CANNOT_WRITE
    choosing = SAMPLES[Choosing][0]
    lost = ev.ChooseFailed("ENOENT", "", gone=True)
    assert isinstance(decide(choosing, lost, context(5.0))[0], Choosing)  # a mount may come back
    assert decide(choosing, lost, context(61.0))[0].code == ExitCode.CANNOT_WRITE
