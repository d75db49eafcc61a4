"""What the table makes of a living worker: its signs of life, its saves, and the requests that come."""

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

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.contract import ExitCode
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.states import (
    Finished,
    Launching,
    Ledger,
    Running,
    Starting,
    State,
    Stopping,
    Waiting,
)
from outlast_supervisor.table import decide
from outlast_supervisor.timers import next_due


def test_fifty_saves_asked_are_one_signal() -> None:
    """Signals that come faster than saves are one save."""
    _, actions = walk(*STARTED, *[ev.SaveAsked("SIGUSR1", "")] * 50)
    assert sum(isinstance(a, act.SignalTrainers) for a in actions) == 1


def test_a_save_signal_is_held_until_a_trainer_attached() -> None:
    """With signals: outlast the save signal waits for READY; with native it goes to the worker at once."""
    before = (ev.LeftoversGone(), FRESH, ev.Spawned(ME), ev.Warned("SIGUSR1"))
    _, held = walk(*before)
    assert not any(isinstance(a, (act.SignalTrainers, act.SignalWorker)) for a in held)
    _, later = walk(*before, ev.Attached(TRAINER, 0, 0, None))
    assert act.SignalTrainers("save") in later
    _, native = walk(*before, policy_changes={"shielded": False})
    assert act.SignalWorker("save") in native


def test_a_worker_that_ignores_its_restore_is_killed_before_it_can_save() -> None:
    """A trainer that attaches elsewhere than at the restored step is killed, and the run ends with 65."""
    state, actions = walk(ev.LeftoversGone(), RESUMED, ev.Spawned(ME), ev.Attached(TRAINER, 0, 0, None))
    assert isinstance(state, Stopping)
    assert act.SignalAll("kill") in actions
    for event in (ev.WorkerExited(None, 9), *ENDED):
        state, _ = decide(state, event, context())
    assert isinstance(state, Finished)
    assert state.code == ExitCode.UNUSABLE


def test_a_first_step_that_went_back_is_no_honoured_restore() -> None:
    """The first step after a restore of 100 may not be 100 or less."""
    state, _ = walk(
        ev.LeftoversGone(),
        RESUMED,
        ev.Spawned(ME),
        ev.Attached(TRAINER, 0, 100, RESUMED.name),
        ev.Reported(1, None, None, "train"),
    )
    assert isinstance(state, Stopping)
    assert state.why == "refused"


def test_a_lost_ready_is_no_restore_that_was_not_honoured() -> None:
    """One whose READY and first steps were lost is taken at its first heard step, if that lies ahead."""
    state, _ = walk(
        ev.LeftoversGone(),
        RESUMED,
        ev.Spawned(ME),
        ev.Attached(TRAINER, 0, None, None),
        ev.Reported(105, None, None, "train"),
    )
    assert isinstance(state, Running)
    assert state.live.step == 105


NOTHING_NEW = ev.Looked(0, None, None, None)


def judged(state: State, found: ev.Looked, now: float) -> tuple[State, tuple[act.Action, ...]]:
    """A timer finds the worker silent, and the disk says this of it."""
    state, actions = decide(state, ev.Tick(), context(now))
    assert actions == (act.Look(1),)
    assert decide(state, ev.Tick(), context(now + 1)) == (state, ()), "asked once"
    return decide(state, found, context(now))


def test_what_follows_the_training_is_not_measured_by_its_steps() -> None:
    """After its last word a worker is asked for no save, and has three times the least limit to end."""
    times = live().times
    for _ in range(30):
        times = times.seen("train", 0.1)
    state: State = running(times=times, progress_at=0.0, sealed_at=0.0)
    state, _ = decide(state, ev.Said("done"), context(1.0))
    assert next_due(state, policy(), 2.0) == 1801.0
    assert decide(state, ev.Tick(), context(1800.0)) == (state, ())
    state, actions = decide(state, ev.Tick(), context(1801.0))
    assert actions == (act.Look(1),)
    state, _ = decide(state, NOTHING_NEW, context(1801.0))
    assert isinstance(state, Stopping)


def test_steps_on_disk_are_signs_of_life() -> None:
    """A worker whose messages are lost is not hung while its metrics grow, and is when they do not."""
    state: State = running(progress_at=0.0, sealed_at=1800.0, step=5)
    state, actions = judged(state, ev.Looked(90, 2.0, None, None), 1801.0)
    assert isinstance(state, Running)
    assert actions == ()
    assert (state.live.step, state.live.progress_at) == (90, 1799.0)
    assert state.live.times == live().times, "what was not heard is no sample of how long it is silent"
    state = replace(state, live=replace(state.live, sealed_at=3600.0))
    state, actions = judged(state, ev.Looked(90, 1802.0, None, None), 3601.0)
    assert isinstance(state, Stopping)
    assert state.why == "hung"


def test_a_line_from_the_future_is_a_sign_of_life_once() -> None:
    """Where the clock was set back, a worker that is silent since is not taken to live until it has caught up."""
    state: State = running(progress_at=0.0, sealed_at=1800.0, step=5)
    state, _ = judged(state, ev.Looked(90, -86_400.0, None, None), 1801.0)
    assert isinstance(state, Running), "that it came so far is news"
    state = replace(state, live=replace(state.live, sealed_at=3601.0))
    state, _ = judged(state, ev.Looked(90, -84_599.0, None, None), 3602.0)
    assert isinstance(state, Stopping)
    assert state.why == "hung"


def test_a_generation_on_disk_is_a_seal() -> None:
    """One whose message was lost keeps the worker from being asked; heard of later, it is no second one."""
    seal = ev.Sealed("step-000000090.a0001", 90, 10, 0.1)
    state: State = running(sealed_at=0.0, progress_at=600.0)
    state, actions = judged(state, ev.Looked(95, 1.0, seal, 30.0), 602.0)
    assert isinstance(state, Running)
    assert not any(isinstance(a, act.SignalTrainers) for a in actions)
    assert act.Verify(seal.name) in actions
    assert (state.live.sealed_at, state.live.sealed_step) == (572.0, 90)
    state, actions = decide(state, seal, context(603.0))
    assert actions == ()
    by_steps: State = running(RESUMED, step=119)
    steps = context(5.0, save=SavePolicy(10, None))
    by_steps, actions = decide(by_steps, ev.Reported(120, None, None, "train"), steps)
    assert actions == (act.Look(2),)
    by_steps, actions = decide(by_steps, ev.Looked(121, 0.0, None, None), steps)
    assert act.SignalTrainers("save") in actions


def test_a_disk_that_does_not_answer_keeps_no_hung_worker_alive() -> None:
    """Without an answer the worker is judged by what was heard of it, half a minute later."""
    state, _ = decide(running(progress_at=0.0, sealed_at=1800.0), ev.Tick(), context(1801.0))
    assert next_due(state, policy(), 1801.0) == 1831.0
    state, _ = decide(state, ev.Tick(), context(1831.0))
    assert isinstance(state, Stopping)


def test_a_silent_worker_is_dumped_told_and_killed() -> None:
    """A hang: stacks, then TERM, then KILL, then the next attempt, counted as hung."""
    state: State = running(progress_at=0.0)
    seen: list[act.Action] = []
    for event, now in [
        (ev.Tick(), 1801.0),
        (NOTHING_NEW, 1801.0),
        (ev.Tick(), 1802.1),
        (ev.Tick(), 1812.2),
        (ev.WorkerExited(None, 9), 1812.3),
        (ev.LeftoversGone(), 1812.4),
        (ev.Examined(None, False, 0, None, ""), 1812.5),
    ]:
        state, actions = decide(state, event, context(now))
        seen += actions
    signals = [a for a in seen if isinstance(a, (act.SignalTrainers, act.SignalAll))]
    assert signals == [act.SignalTrainers("stacks"), act.SignalTrainers("stop"), act.SignalAll("kill")]
    assert isinstance(state, Waiting)
    assert state.ledger.counters.hung == 1


def test_a_stopped_run_is_held_and_answers_the_request() -> None:
    """`stop` ends in 70, with the hold in the journal and the request answered."""
    state, actions = walk(
        *STARTED, ev.StopAsked("ann", "r9"), ev.Said("saved"), ev.WorkerExited(75, None), *ENDED
    )
    assert isinstance(state, Finished)
    assert state.code == ExitCode.HELD
    assert any(isinstance(a, act.Note) and a.event == "held" for a in actions)
    assert any(isinstance(a, act.Answer) and a.request == "r9" for a in actions)


def test_an_overdue_save_is_asked_for_and_then_called_a_violation() -> None:
    """Nothing sealed for T brings a signal, nothing for another T brings the violation."""
    state: State = running(sealed_at=0.0, progress_at=1300.0)
    state, first = judged(state, NOTHING_NEW, 601.5)
    assert act.SignalTrainers("save") in first
    state, second = judged(state, NOTHING_NEW, 1203.5)
    assert any(isinstance(a, act.Note) and a.event == "violation" for a in second)
    assert state.ledger.violation


def test_a_near_deadline_is_a_notice_at_the_last_boundary_that_fits() -> None:
    """With steps of 1 s and saves of 2 s a deadline at 100 s ends the training 6 s before."""
    times = live().times.seen("train", 1.0)
    state: State = running(
        ledger=Ledger(deadline=100.0, saves=(2.0,)), times=times, trained=5, progress_at=90.0
    )
    assert next_due(state, policy(), 90.0) == 94.0
    state, _ = decide(state, ev.Tick(), context(93.9))
    assert isinstance(state, Running)
    state, actions = decide(state, ev.Tick(), context(94.0))
    assert isinstance(state, Stopping)
    assert act.SignalTrainers("stop") in actions


def test_before_a_save_was_measured_it_gets_the_grace() -> None:
    """With steps of 1 s, a grace of 30 s and no save so far a deadline at 100 s ends the training 32 s before."""
    times = live().times.seen("train", 1.0)
    state: State = running(ledger=Ledger(deadline=100.0), times=times, trained=5, progress_at=60.0)
    assert next_due(state, policy(), 60.0) == 68.0


def test_a_save_that_takes_longer_than_the_warning_is_begun_in_time() -> None:
    """With saves of 4 min an end in hours ends the training 8 min before, whatever the grace."""
    times = live().times.seen("train", 1.0)
    state: State = running(
        ledger=Ledger(deadline=9000.0, saves=(240.0,)), times=times, trained=5, progress_at=8000.0
    )
    patient = policy(hang_min=9000.0, save=SavePolicy(100, None))
    assert next_due(state, patient, 8000.0) == 9000 - 2 * (1 + 240) - 60
    assert next_due(state, patient, 8500.0) == 9000 - 2 * (1 + 240)


@pytest.mark.parametrize(
    ("ask", "deadline", "ended_at"),
    [
        (ev.Notice("SIGTERM"), None, 40.0),  # nothing but the grace is known of the machine's patience
        (ev.Notice("SIGTERM"), 90000.0, 40.0),  # the known end is another's than the signal's
        (ev.Notice("the deadline", "deadline"), 100.0, 88.0),
        (ev.StopAsked("me", ""), None, 160.0),
        (ev.RestartAsked("me", ""), None, 160.0),
    ],
)
def test_a_save_that_gains_bytes_is_waited_for(
    ask: ev.Event, deadline: float | None, ended_at: float
) -> None:
    """Beyond the grace, up to a known end, or as long as it goes on where a person asks: it was killed halfway."""
    state, _ = decide(running(ledger=Ledger(deadline=deadline)), ask, context(10.0))
    state, _ = decide(state, ev.Reported(None, None, None, "save"), context(11.0))
    told: list[float] = []
    for now in range(12, 200):
        if now <= 120:
            state, _ = decide(state, ev.Saving(now), context(now))
        state, actions = decide(state, ev.Tick(), context(now))
        told += [float(now)] if act.SignalAll("term") in actions else []
    assert told == [ended_at]


@pytest.mark.parametrize("ask", [ev.StopAsked("me", ""), ev.Notice("the deadline", "deadline")])
def test_a_signal_ends_the_waiting_for_a_save(ask: ev.Event) -> None:
    """Whoever sends one while a save is waited for kills soon: it has the grace from then on, however many come."""
    state, _ = decide(running(ledger=Ledger(deadline=90000.0)), ask, context(10.0))
    state, _ = decide(state, ev.Reported(None, None, None, "save"), context(11.0))
    told: list[float] = []
    for now in range(12, 200):
        state, _ = decide(state, ev.Saving(now), context(now))
        if now >= 75:
            state, _ = decide(state, ev.Notice("SIGTERM"), context(now))
        state, actions = decide(state, ev.Tick(), context(now))
        told += [float(now)] if act.SignalAll("term") in actions else []
    assert told == [105.0]


def test_a_save_that_has_just_begun_is_waited_for() -> None:
    """A step of more than half a minute may end as the grace does: its save gains its first bytes after that."""
    state, _ = decide(running(), ev.StopAsked("me", ""), context(10.0))
    state, _ = decide(state, ev.Reported(1, None, None, "save"), context(39.0))
    state, actions = decide(state, ev.Tick(), context(40.0))
    assert act.SignalAll("term") not in actions


def test_half_of_an_attempt_is_for_training() -> None:
    """With a grace of 30 s, or saves that take as long, an attempt that has 40 s is not ended as it begins."""
    for saves in ((), (30.0,)):
        state: State = Starting(Ledger(attempt=1, deadline=40.0, saves=saves), live())
        assert next_due(state, policy(), 0.0) == 20.0


def test_what_is_told_before_the_first_step_is_not_taken_for_a_step() -> None:
    """A trainer that attached and speaks is stopped so early that its first step, as long as it may be, is saved."""
    state: State = running(ledger=Ledger(attempt=1, deadline=9.0, saves=(0.1,)), progress_at=1.0)
    state, _ = decide(state, ev.Reported(None, None, "train", None), context(1.1))
    assert next_due(state, policy(), 1.1) == 4.5


def test_a_new_attempt_knows_what_saves_took_in_those_before() -> None:
    """Seals stay known when the next attempt is launched, so its first save is begun in time."""
    times = live().times.seen("train", 1.0)
    state: State = running(times=times, trained=5, progress_at=60.0)
    state, _ = decide(state, ev.Sealed("step-000000009.a0001", 9, 1, 40.0), context(60.0))
    assert isinstance(state, Running)
    later: State = running(
        ledger=replace(state.ledger, deadline=200.0), times=times, trained=5, progress_at=60.0
    )
    assert next_due(later, policy(), 60.0) == 200.0 - 2 * (1.0 + 40.0)


def test_a_save_signal_that_brought_nothing_is_passed_on_again() -> None:
    """A later save signal reaches the worker although an earlier one was lost on it."""
    state: State = running()
    state, first = decide(state, ev.Warned("SIGUSR1"), context(10.0))
    state, second = decide(state, ev.Warned("SIGUSR1"), context(10.5))
    _, third = decide(state, ev.Warned("SIGUSR1"), context(11.5))
    counts = [sum(a == act.SignalTrainers("save") for a in actions) for actions in (first, second, third)]
    assert counts == [1, 0, 1]


def test_an_unmeasured_worker_is_not_stopped_long_before_a_deadline() -> None:
    """Before any step or save was timed a deadline leaves the worker all but the grace."""
    state: State = Starting(Ledger(attempt=1, deadline=100.0), live())
    assert next_due(state, policy(), 5.0) == 70.0
    state, _ = decide(state, ev.Tick(), context(69.0))
    assert isinstance(state, Starting)
    state, _ = decide(state, ev.Tick(), context(70.0))
    assert isinstance(state, Stopping)


def test_a_disk_that_stays_full_is_told_once_however_much_is_left() -> None:
    """The same reason with other figures is no news: neither a record, nor a line, nor a hook; another reason is."""
    short = "not enough space: the last generation took {} KiB and {} GiB left"
    reasons = [short.format("602.1", "1.5"), short.format("603.8", "1"), "Read-only file system"]
    state: State = running()
    told = []
    for number, reason in enumerate(reasons):
        state, actions = decide(state, ev.SaveFailed(reason), context(10.0 + number))
        assert state.ledger.unprotected == reason, "the status shows how it is now"
        told.append([type(a) for a in actions if isinstance(a, act.Note | act.Say | act.Hook)])
    assert told == [[act.Note, act.Say, act.Hook], [], [act.Note, act.Say]]


def test_an_attempt_that_could_not_be_started_says_at_which_act() -> None:
    """A file that cannot be opened is not put down to the worker's command."""
    for event, said in (
        (ev.SpawnFailed("EACCES: x"), "cannot execute the worker: EACCES: x"),
        (ev.SpawnFailed("EROFS: x", "cannot open a file"), "cannot open a file: EROFS: x"),
    ):
        _, actions = decide(Launching(Ledger(attempt=1), FRESH, "start"), event, context())
        assert any(isinstance(a, act.Say) and said in a.text for a in actions), actions
