"""What is decided while a worker runs: attaching, steps, saves, cadence, hangs, deadline."""

from __future__ import annotations

import re

from msgspec.structs import replace

from outlast_jobs import cadence
from outlast_jobs import events as journal
from outlast_jobs.contract import ExitWord, Phase

from . import events as ev
from .actions import (
    Action,
    Answer,
    Audit,
    EndLeftovers,
    Hook,
    Look,
    Note,
    Prune,
    Say,
    SetAside,
    SignalAll,
    SignalTrainers,
    SignalWorker,
    Verify,
)
from .policy import Context
from .states import Alive, Choosing, Ending, Ledger, Live, Running, Starting, State, Step, Stopping

KILL_AFTER = 2.0  # seconds from TERM to all until KILL to all
KILL_AGAIN = 1.0  # seconds: whoever was just being started when the others were killed is killed then
ASK_SLACK = 1.0  # a worker that is this late with a save is not asked yet
SAVES_KEPT = 20
AFTERWARDS = "after the training"  # no phase of training tells how long an export may take
LOOK_PATIENCE = 30.0  # seconds after which a worker is judged without a word from its disk


# -- helpers ---------------------------------------------------------------------------------------------


def stop(
    state: Starting | Running, why: str, detail: str, ctx: Context, *extra: Action
) -> tuple[Stopping, tuple[Action, ...]]:
    """Tell the worker to save and end."""
    grace, deadline = ctx.policy.grace, state.ledger.deadline
    if deadline is not None and deadline > ctx.now:  # what is not done by then is not done at all
        grace = max(1.0, min(grace, deadline - ctx.now - KILL_AFTER))
    signal: Action = SignalTrainers("stop") if isinstance(state, Running) else SignalWorker("stop")
    after = Stopping(
        state.ledger,
        state.live,
        why,
        detail,
        term_at=ctx.now + grace,
        kill_at=ctx.now + grace + KILL_AFTER,
    )
    return after, (*extra, signal)


def within_grace(state: Stopping, ctx: Context) -> Stopping:
    """A signal came: of its sender's patience nothing is known but the grace, whatever end is known of another's."""
    until = ctx.now + ctx.policy.grace
    term_at = min(state.term_at, until) if state.term_at is not None else None
    kill_at = min(state.kill_at, until + KILL_AFTER) if state.kill_at is not None else None
    return replace(state, term_at=term_at, kill_at=kill_at, until_at=until)


def kill(state: Starting | Running, why: str, detail: str, ctx: Context, *extra: Action) -> Step:
    """End the worker before it can do anything more."""
    after = Stopping(
        state.ledger, state.live, why, detail, term_at=None, kill_at=None, again_at=ctx.now + KILL_AGAIN
    )
    return after, (*extra, SignalAll("kill"))


def signs_of_life(live: Live, now: float) -> Live:
    """It moved: remember for how long it had been silent in this phase."""
    if not live.attached:
        return replace(live, progress_at=now)
    return replace(live, times=live.times.seen(live.phase, now - live.progress_at), progress_at=now)


def save_p95(ledger: Ledger) -> float | None:
    """95th percentile of the latest saves, seconds."""
    if not ledger.saves:
        return None
    ordered = sorted(ledger.saves)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def step_longest(live: Live) -> float | None:
    """The longest step seen, seconds: the safe side of a 95th percentile."""
    return live.times.longest.get(Phase.TRAIN)


def fit_times(ledger: Ledger, live: Live, grace: float) -> tuple[float, float]:
    """Step and save times for the deadline; before any save was measured the worker gets the grace for one.

    Half of the attempt's time is for training, or one that is shorter than that would be ended as it begins.
    """
    step = step_longest(live) if live.trained else None  # until then only other signs of life were timed
    save = save_p95(ledger)
    if save is None:
        step, save = step or 0.0, grace / cadence.DOUBLED
    elif step is None:
        step = grace / (2 * cadence.DOUBLED)
    if ledger.deadline is not None:
        most = max(0.0, ledger.deadline - live.started_at) / (2 * cadence.DOUBLED)
        step = step if live.trained else min(step, most)
        save = min(save, max(0.0, most - step))
    return step, save


def watched_phase(live: Live) -> str:
    """What the worker's silence is measured by."""
    return AFTERWARDS if ExitWord.DONE in live.words else live.phase


def ask_allowance(ledger: Ledger, live: Live) -> float:
    """Seconds that a worker on time may be late: a step, a save, and some slack."""
    return (step_longest(live) or 0.0) + (save_p95(ledger) or 0.0) + ASK_SLACK


# -- what a trainer tells ----------------------------------------------------------------------------------


def attached(state: Starting | Running, event: ev.Attached, ctx: Context) -> Step:
    live, chosen = state.live, state.live.chosen
    note = Note(
        journal.ATTEMPT_ATTACHED,
        {"attempt": live.attempt, "pid": event.trainer.pid, "rank": event.rank, "restored": event.restored},
    )
    if live.attached:  # what a try before has failed of is got over
        trainers = tuple(dict.fromkeys((*live.trainers, event.trainer)))
        return replace(state, live=replace(live, trainers=trainers, failure=None)), (note,)
    live = replace(
        live,
        trainers=(*live.trainers, event.trainer),
        attached=True,
        phase=Phase.TRAIN,
        progress_at=ctx.now,
        sealed_at=ctx.now,
    )
    running = Running(state.ledger, live)
    at = chosen.step if event.step is None else event.step
    if chosen.name is not None and at != chosen.step:
        return _not_honoured(running, f"restored {chosen.name} but attached at step {at}", ctx, note)
    held: tuple[Action, ...] = (SignalTrainers("save"),) if live.save_wanted else ()
    return running, (
        note,
        Say(f"attempt {live.attempt} attached at step {at}, pid {event.trainer.pid}"),
        *held,
    )


def _not_honoured(state: Running, what: str, ctx: Context, *extra: Action) -> Step:
    text = f"restore not honoured: {what}; stopped before it could seal over good generations"
    state = replace(state, live=replace(state.live, refused=text))
    return kill(state, "refused", text, ctx, *extra, Say(text, "error"))


def reported(state: Starting | Running, event: ev.Reported, ctx: Context) -> Step:
    live, now = state.live, ctx.now
    first = live.attached and live.stepped_at is None
    went_back = event.step is not None and first and 0 < event.step <= live.chosen.step
    live = signs_of_life(live, now)
    if event.phase and event.phase != live.phase:
        live = replace(live, phase=event.phase)
    live = replace(
        live, total=event.total or live.total, loss=event.loss if event.loss is not None else live.loss
    )
    if event.step is not None and (event.step > live.step or first):
        live = replace(live, step=event.step, trained=event.step - live.chosen.step, stepped_at=now)
    state = replace(state, live=live)
    if isinstance(state, Starting):
        return state, ()
    if went_back:
        return _not_honoured(state, f"the first step after {live.chosen.name} is {event.step}", ctx)
    if not live.audited and live.chosen.step < live.chosen.replay_until < live.step:
        return replace(state, live=replace(live, audited=True)), (Audit(live.attempt),)
    return (state, ()) if steps_overdue(live, ctx) is None else look(state, ctx)


def steps_overdue(live: Live, ctx: Context) -> str | None:
    """Why the worker is to be asked for a save, where it let twice the steps of the cadence pass."""
    every = ctx.policy.save.every_steps
    if every is None or live.asked_at is not None or live.step - live.sealed_step < 2 * every:
        return None
    return f"{live.step - live.sealed_step} steps without a sealed generation, the cadence is {every}"


def look(state: Running, ctx: Context) -> Step:
    """See on disk how far the worker is, before it is judged by what was heard of it."""
    if state.live.look_at is not None:
        return state, ()
    return replace(state, live=replace(state.live, look_at=ctx.now)), (Look(state.live.attempt),)


def saving(state: Alive, event: ev.Saving, ctx: Context) -> Step:
    return replace(state, live=signs_of_life(state.live, ctx.now)), ()


def sealed(state: Alive | Ending, event: ev.Sealed, ctx: Context) -> Step:
    live = signs_of_life(state.live, ctx.now)
    if live.seals and event.name == live.sealed_name:
        return replace(state, live=live), ()  # it was seen on disk before it was heard of
    live, ledger, actions = take_in(event, live, state.ledger, ctx.now)
    return replace(state, live=live, ledger=ledger), actions


def wrote(state: Alive | Ending, event: ev.Wrote, ctx: Context) -> Step:
    """All that is seen of the progress of a script without the library."""
    live, at = state.live, min(ctx.now, ctx.now - event.age)
    further = event.step > live.sealed_step or not event.numbered
    if not further or at < live.started_at:  # one that was passed over, for an older one
        return state, ()
    live = replace(
        live,
        sealed_at=max(live.sealed_at, at),
        sealed_step=max(live.sealed_step, event.step),
        sealed_name=event.name,
        step=max(live.step, event.step),
        wrote=True,
    )
    return replace(state, live=live), ()


def take_in(
    event: ev.Sealed, live: Live, ledger: Ledger, sealed_at: float
) -> tuple[Live, Ledger, tuple[Action, ...]]:
    """A generation is sealed: what is known from now on, and what has to be done."""
    data = {"generation": event.name, "step": event.step, "bytes": event.written, "seconds": event.seconds}
    actions: list[Action] = [
        Note(journal.SEALED, data if event.cost is None else {**data, "cost": event.cost}),
        Verify(event.name),
    ]
    actions += [Answer(r, True, f"saved {event.name}") for r in live.save_requests]
    if ledger.unprotected:
        actions += [Note(journal.PROTECTED), Say(f"protected again: {event.name} is sealed")]
    live = replace(
        live,
        sealed_at=sealed_at,
        sealed_step=max(live.sealed_step, event.step),
        sealed_name=event.name if event.step >= live.sealed_step else live.sealed_name,
        step=max(live.step, event.step),
        seals=live.seals + 1,
        save_wanted=(),
        wanted_at=None,
        save_requests=(),
        asked_at=None,
        costs=(*live.costs, event.seconds if event.cost is None else event.cost)[-SAVES_KEPT:],
    )
    saves = (*ledger.saves, event.seconds)[-SAVES_KEPT:]
    return live, replace(ledger, unprotected="", violation="", saves=saves), tuple(actions)


def save_failed(state: Alive, event: ev.SaveFailed, ctx: Context) -> Step:
    live, ledger = state.live, state.ledger
    actions: list[Action] = [Answer(r, False, event.reason) for r in live.save_requests]
    if _without_figures(ledger.unprotected) != _without_figures(event.reason):
        actions += [
            Note(journal.UNPROTECTED, {"reason": event.reason}),
            Say(
                f"unprotected: {event.reason}; training goes on, the save is tried again at the next cadence",
                "warning",
            ),
        ]
    if not ledger.unprotected:
        actions.append(Hook("unprotected", event.reason))
    actions.append(Prune(live.chosen.name))
    live = replace(live, save_wanted=(), wanted_at=None, save_requests=(), asked_at=ctx.now)
    return replace(state, live=live, ledger=replace(ledger, unprotected=event.reason)), tuple(actions)


def _without_figures(reason: str) -> str:
    """What is wrong, however much of it: what is left on a full disk is another number at each save."""
    return re.sub(r"\d[\d.]*( [KMGTP]i?)?", "#", reason)


def rejected(state: Starting | Running, event: ev.Rejected, ctx: Context) -> Step:
    reason = f"{event.name} failed its verification: {event.reason}"
    ledger = replace(state.ledger, unprotected=reason)
    return replace(state, ledger=ledger), (
        SetAside(event.name, event.reason),
        Note(journal.UNPROTECTED, {"reason": reason}),
        Say(f"{reason}; set aside, asking for a new save", "error"),
        SignalTrainers("save"),
    )


def rejected_late(state: State, event: ev.Rejected, ctx: Context) -> Step:
    return state, (
        SetAside(event.name, event.reason),
        Say(f"{event.name} failed its verification: {event.reason}; set aside", "error"),
    )


def verified(state: State, event: ev.Verified, ctx: Context) -> Step:
    state = replace(state, ledger=replace(state.ledger, verified=event.name))
    if isinstance(state, Choosing):  # the one being chosen is not known yet, so nothing may be deleted
        return state, ()
    live = getattr(state, "live", None)
    chosen = live.chosen if live is not None else getattr(state, "chosen", None)
    return state, (Prune(chosen.name if chosen is not None and chosen.own else None),)


def sick(state: Starting | Running, event: ev.Sick, ctx: Context) -> Step:
    if state.live.sick is not None:
        return state, ()
    state = replace(state, live=replace(state.live, sick=event.step))
    text = f"loss or state is not finite at step {event.step}"
    note = Note(journal.SICK, {"step": event.step})
    if ctx.policy.restart.sick != "stop":
        return state, (note, Say(f"{text}; going on, as sick: continue asks", "warning"))
    return stop(
        state, "sick", text, ctx, note, Say(f"{text}; going back to the newest healthy generation", "warning")
    )


def drifted(state: Starting | Running, event: ev.Drifted, ctx: Context) -> Step:
    return state, (
        Note(journal.DRIFT, {"differences": list(event.what)}),
        Say("bit-exact is not expected: " + "; ".join(event.what), "warning"),
    )


def said(state: Alive | Ending, event: ev.Said, ctx: Context) -> Step:
    live = signs_of_life(state.live, ctx.now)
    return replace(state, live=replace(live, words=live.words | {event.word})), ()


def raised(state: Alive | Ending, event: ev.Raised, ctx: Context) -> Step:
    return replace(state, live=replace(state.live, failure=event.failure)), ()


def found_bad(state: Alive | Ending, event: ev.FoundBad, ctx: Context) -> Step:
    return replace(state, live=replace(state.live, bad=(event.name, event.reason))), ()


def refused(state: Alive | Ending, event: ev.Refused, ctx: Context) -> Step:
    return replace(state, live=replace(state.live, refused=event.reason)), (Say(event.reason, "error"),)


def audited(state: State, event: ev.Audited, ctx: Context) -> Step:
    note = Note(journal.AUDIT, {"text": event.text, "compared": event.compared, "equal": event.equal})
    state = replace(state, ledger=replace(state.ledger, audit=event.text))
    says = Say(event.text, "info" if event.equal else "warning")
    if not event.equal and ctx.policy.audit == "stop" and isinstance(state, (Starting, Running)):
        return stop(state, "audit", event.text, ctx, note, says)
    return state, (note, says)


# -- processes ---------------------------------------------------------------------------------------------


def trainer_gone(state: Alive | Ending, event: ev.TrainerGone, ctx: Context) -> Step:
    rest = tuple(t for t in state.live.trainers if t != event.trainer)
    return replace(state, live=replace(state.live, trainers=rest)), ()


def exited(state: Alive, event: ev.WorkerExited, ctx: Context) -> Step:
    why, detail = (state.why, state.detail) if isinstance(state, Stopping) else ("", "")
    ending = Ending(
        state.ledger,
        state.live,
        why,
        detail,
        event.code,
        event.signal,
        ended_at=ctx.now,
        look_at=None,
        kill_at=None,
        signalled="look",
        examining=False,
    )
    return ending, (EndLeftovers("look"),)
