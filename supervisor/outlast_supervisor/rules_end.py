"""What is decided while a worker is being ended, and when it is gone."""

from __future__ import annotations

from msgspec.structs import replace

from outlast_jobs.contract import Phase

from . import events as ev
from .actions import Action, Answer, EndLeftovers, Examine, Say, SignalAll, SignalTrainers
from .conclude import conclude, to_hold
from .policy import Context
from .rules_live import KILL_AFTER, KILL_AGAIN, within_grace
from .states import Ending, Ledger, Step, Stopping

LOOK_EVERY = 0.05  # seconds between looks at what an attempt left; the death of a child brings one at once
LINGER = 1.0  # seconds in which what a finished command started may end with it
STRAY_GRACE = 5.0  # for processes that never attached: they have nothing to save
# seconds, and bytes a second at the least, for the save of a dead worker
FINISH_PATIENCE, FINISH_RATE = 60.0, 20e6
# seconds that it gets at the least, and that stay free before a deadline
FINISH_LEAST, FINISH_SPARE = 1.0, 1.0
WAITS = "have the command wait for what it starts (exec, or wait), and not put it into the background"
# seconds without a word of more bytes after which a save is not waited for beyond the grace
SAVE_SILENT = 30.0
LAST_ACTS = 10.0  # and that a known end has to leave for what follows the worker's own
EXAMINE_PATIENCE = 10.0  # for the traces of an attempt, where the supervisor has to end: the disk may be dead


# -- Stopping ----------------------------------------------------------------------------------------------


def stopping_tick(state: Stopping, event: ev.Tick, ctx: Context) -> Step:
    if state.kill_at is not None and ctx.now >= state.kill_at:
        text = f"attempt {state.live.attempt} did not end in time: killing all that it started"
        state = replace(state, term_at=None, kill_at=None, again_at=ctx.now + KILL_AGAIN)
        return state, (Say(text, "warning"), SignalAll("kill"))
    if state.again_at is not None and ctx.now >= state.again_at:
        return replace(state, again_at=ctx.now + KILL_AGAIN), (SignalAll("kill"),)
    if state.term_at is not None and ctx.now >= state.term_at:
        if (later := _while_it_saves(state, ctx)) > ctx.now:
            return replace(state, term_at=later, kill_at=later + KILL_AFTER), ()
        how: tuple[Action, ...] = (SignalTrainers("stop"),) if state.why == "hung" else (SignalAll("term"),)
        return replace(state, term_at=None), how
    return state, ()


def _while_it_saves(state: Stopping, ctx: Context) -> float:
    """Until when a save that gains bytes is waited for beyond the grace: a known end leaves it time, or a person does.

    Not beyond what the sender of a signal is known to wait, nor where a save has hung.
    """
    live, deadline = state.live, state.ledger.deadline
    if live.phase != Phase.SAVE or ctx.now - live.progress_at > SAVE_SILENT or state.why == "hung":
        return ctx.now
    until = ctx.now + SAVE_SILENT
    if deadline is not None and deadline > ctx.now:
        until = min(until, deadline - LAST_ACTS - KILL_AFTER)
    elif state.why not in ("person", "restart"):
        return ctx.now
    return until if state.until_at is None else min(until, state.until_at)


def stopping_attached(state: Stopping, event: ev.Attached, ctx: Context) -> Step:
    live = replace(
        state.live,
        trainers=(*state.live.trainers, event.trainer),
        attached=True,
        phase=Phase.TRAIN,
    )
    # it was told before it could listen
    tell: tuple[Action, ...] = (
        (SignalTrainers("stop"),) if state.kill_at is not None else (SignalAll("kill"),)
    )
    return replace(state, live=live), tell


def stopping_reported(state: Stopping, event: ev.Reported, ctx: Context) -> Step:
    live = state.live
    if event.phase and event.phase != live.phase:
        live = replace(live, phase=event.phase, progress_at=ctx.now)
    if event.step is not None and event.step > live.step:
        live = replace(live, step=event.step, trained=event.step - live.chosen.step, stepped_at=ctx.now)
    return replace(state, live=live), ()


def stopping_notice(state: Stopping, event: ev.Notice, ctx: Context) -> Step:
    if state.until_at is None:
        state = within_grace(state, ctx)
    if state.ledger.leaving:
        return state, ()  # fifty TERMs in a second are one stop
    ledger = replace(state.ledger, leaving=event.source, leaving_of=event.of)
    live = replace(state.live, notice=event.source)
    return replace(state, ledger=ledger, live=live), (
        Say(f"{event.source}: the worker is being stopped already"),
    )


def stopping_stop(state: Stopping | Ending, event: ev.StopAsked, ctx: Context) -> Step:
    ledger, actions = to_hold(state.ledger, event)
    return replace(state, ledger=ledger), actions


def stopping_restart(state: Stopping, event: ev.RestartAsked, ctx: Context) -> Step:
    return state, (Answer(event.request, False, "the worker is being stopped already"),)


def stopping_save(state: Stopping | Ending, event: ev.SaveAsked, ctx: Context) -> Step:
    if not event.request:
        return state, ()
    return state, (Answer(event.request, False, "the worker is being stopped, which saves by itself"),)


def stopping_sick(state: Stopping, event: ev.Sick, ctx: Context) -> Step:
    sick = state.live.sick if state.live.sick is not None else event.step
    return replace(state, live=replace(state.live, sick=sick)), ()


# -- Ending ------------------------------------------------------------------------------------------------


def ending_gone(state: Ending, event: ev.LeftoversGone, ctx: Context) -> Step:
    if state.examining:
        return state, ()
    within = time_to_finish(state.ledger, event.unsealed, ctx)
    after = replace(state, examining=True, look_at=ctx.now + EXAMINE_PATIENCE + within, kill_at=None)
    return after, (Examine(state.live.attempt, within),)


def time_to_finish(ledger: Ledger, unsealed: int, ctx: Context) -> float:
    """Seconds in which the save that a dead worker's buffer holds may be finished; 0 where there is none."""
    if not unsealed or ledger.gone:
        return 0.0
    most = FINISH_PATIENCE + unsealed / FINISH_RATE
    if ledger.leaving or ledger.holding:
        most = min(most, ctx.policy.grace)
    if ledger.deadline is not None:
        most = min(most, ledger.deadline - ctx.now - FINISH_SPARE)
    return max(most, FINISH_LEAST)


def ending_remain(state: Ending, event: ev.LeftoversRemain, ctx: Context) -> Step:
    look_at = ctx.now + LOOK_EVERY
    if state.signalled != "look" or not event.pids:  # none could be looked at
        return replace(state, look_at=look_at), ()
    alone = state.code == 0 and not state.why and not state.live.attached
    if alone and ctx.now < state.ended_at + LINGER:
        return replace(state, look_at=look_at), ()
    # one that was told to stop and never attached may be saving in its own way, behind a shell that is gone
    saves = bool(state.live.trainers) or (bool(state.why) and not state.live.attached)
    grace = ctx.policy.grace if saves else min(STRAY_GRACE, ctx.policy.grace)
    pids = ", ".join(map(str, event.pids))
    after = replace(state, look_at=look_at, kill_at=ctx.now + grace, signalled="term")
    # loader processes end with their trainer in a moment; only what stays is worth a word
    said = Say(f"ending what attempt {state.live.attempt} left: pids {pids}", "debug")
    if alone:  # most likely the training itself, in the background of a script that did not wait
        after = replace(after, left=ctx.policy.shielded)
        said = Say(
            f"the command exited 0, and what it had started did not end (pids {pids}): ending that; {WAITS}",
            "warning",
        )
    return after, (said, EndLeftovers("term"))


def ending_attached(state: Ending, event: ev.Attached, ctx: Context) -> Step:
    """A trainer whose command is gone already: nobody would wait for its end, and so it has to save and go."""
    live = replace(state.live, trainers=(*state.live.trainers, event.trainer), attached=True)
    if state.examining or state.signalled == "kill":
        return replace(state, live=live), ()
    after = replace(
        state,
        live=live,
        look_at=ctx.now + LOOK_EVERY,
        kill_at=ctx.now + ctx.policy.grace,
        signalled="term",
    )
    text = f"a trainer attached after the command had ended: it is stopped; {WAITS}"
    return after, (Say(text, "warning"), SignalTrainers("stop"))


def ending_tick(state: Ending, event: ev.Tick, ctx: Context) -> Step:
    if state.examining:
        goes = bool(state.ledger.leaving or state.ledger.holding)
        if goes and state.look_at is not None and ctx.now >= state.look_at:
            return conclude(state.ledger, state, ctx)  # without its traces: the disk that has them is silent
        return state, ()
    if state.kill_at is not None and ctx.now >= state.kill_at:
        after = replace(state, kill_at=None, signalled="kill", look_at=ctx.now + LOOK_EVERY)
        return after, (
            Say("what is left does not end by itself: killing it", "warning"),
            EndLeftovers("kill"),
        )
    if state.look_at is not None and ctx.now >= state.look_at:
        how = "kill" if state.signalled == "kill" else "look"
        return replace(state, look_at=ctx.now + 4 * LOOK_EVERY), (EndLeftovers(how),)
    return state, ()


def ending_examined(state: Ending, event: ev.Examined, ctx: Context) -> Step:
    if not state.examining:
        return state, ()
    return conclude(state.ledger, state, ctx, examined=event)


def ending_notice(state: Ending, event: ev.Notice, ctx: Context) -> Step:
    if state.ledger.leaving:
        return state, ()  # the first one says why
    look_at = state.look_at
    if state.examining and look_at is not None:  # what may be finished first has less time from here on
        look_at = min(look_at, ctx.now + EXAMINE_PATIENCE + ctx.policy.grace)
    ledger = replace(state.ledger, leaving=event.source, leaving_of=event.of)
    return replace(state, ledger=ledger, look_at=look_at), ()


def ending_stop_now(state: Ending, event: ev.StopNow, ctx: Context) -> Step:
    ledger = replace(state.ledger, leaving=event.source, leaving_of=event.of)
    return replace(state, ledger=ledger, kill_at=None, signalled="kill"), (EndLeftovers("kill"),)


def ending_restart(state: Ending, event: ev.RestartAsked, ctx: Context) -> Step:
    return state, (Answer(event.request, True, "the attempt has ended, the next one follows"),)
