"""What is decided while no worker runs: clearing, choosing, launching, waiting."""

from __future__ import annotations

from msgspec.structs import replace

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode, Phase
from outlast_jobs.restart import Failure

from . import events as ev
from .actions import Action, Answer, Choose, EndLeftovers, Exit, Note, Say, SignalWorker, Spawn
from .conclude import choose, conclude, finish, hold_by_person, to_hold
from .policy import Context
from .rules_live import KILL_AFTER
from .states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Ledger,
    Live,
    Starting,
    State,
    Step,
    Stopping,
    Waiting,
)

LOOK_EVERY = 0.1  # seconds between looks at what an earlier attempt left: nobody tells us of its end
TELL_EVERY = 30.0
PREPARE = 0.05  # seconds of a backoff in which what a start needs is done: its end is the worker's exec


def begin(ledger: Ledger, now: float, cause: str = "start") -> Step:
    """The first state of a supervisor's life."""
    state = Clearing(ledger, cause, look_at=None, kill_at=None, tell_at=now + TELL_EVERY, signalled="look")
    return state, (EndLeftovers("look"),)


def prepares_at(state: Waiting) -> float:
    """When the start after a backoff is prepared; never where the deadline comes before the backoff's end."""
    deadline = state.ledger.deadline
    late = deadline is not None and deadline <= state.until_at
    return state.until_at if late else state.until_at - PREPARE


def leave(ledger: Ledger, source: str, of: str) -> Step:
    """End the supervisor while no worker runs."""
    ledger = replace(ledger, leaving=source, leaving_of=of)
    if ledger.holding:  # a person was first, and the run must not start again
        return hold_by_person(ledger)
    reason = f"not done, nothing in flight; stopped by {source}: run me again"
    return Finished(ledger, ExitCode.SAVED, reason), (Exit(ExitCode.SAVED, reason),)


# -- Clearing ------------------------------------------------------------------------------------------


def clearing_gone(state: Clearing, event: ev.LeftoversGone, ctx: Context) -> Step:
    if state.ledger.holding:
        return hold_by_person(state.ledger)
    return choose(state.ledger, state.cause, ctx)


def clearing_remain(state: Clearing, event: ev.LeftoversRemain, ctx: Context) -> Step:
    if state.signalled != "look":
        return replace(state, look_at=ctx.now + LOOK_EVERY), ()
    text = (
        f"ending what is left of an earlier attempt: pids {', '.join(map(str, event.pids))}"
        if event.pids
        else "an earlier attempt is still alive elsewhere: waiting for it to end"
    )
    after = replace(state, look_at=ctx.now + LOOK_EVERY, kill_at=ctx.now + ctx.policy.grace, signalled="term")
    return after, (
        Note(journal.LEFTOVERS_ENDED, {"pids": list(event.pids), "how": "term"}),
        Say(text, "warning"),
        EndLeftovers("term"),
    )


def clearing_tick(state: Clearing, event: ev.Tick, ctx: Context) -> Step:
    actions: list[Action] = []
    if ctx.now >= state.tell_at:
        actions.append(Say("still waiting for an earlier attempt to end", "warning"))
        state = replace(state, tell_at=ctx.now + TELL_EVERY)
    if state.kill_at is not None and ctx.now >= state.kill_at:
        state = replace(state, kill_at=None, look_at=None, signalled="kill")
        return state, (*actions, EndLeftovers("kill"))
    if state.look_at is not None and ctx.now >= state.look_at:
        # after KILL it may have started more in the meantime
        how = "kill" if state.signalled == "kill" else "look"
        return replace(state, look_at=None), (*actions, EndLeftovers(how))
    return state, tuple(actions)


# -- Choosing ------------------------------------------------------------------------------------------


def choosing_chosen(state: Choosing, event: ev.Chosen, ctx: Context) -> Step:
    ledger = replace(state.ledger, attempt=event.attempt, verified=event.verified)
    data = {
        "attempt": ledger.attempt,
        "resume": event.name,
        "step": event.step,
        "cause": state.cause,
        "why": event.why,
    }
    return Launching(ledger, event, state.cause), (
        Note(journal.ATTEMPT_STARTED, data),
        Spawn(ledger.attempt, event, state.cause),
    )


def choosing_unusable(state: Choosing, event: ev.Unusable, ctx: Context) -> Step:
    return finish(replace(state.ledger, verified=event.verified), ExitCode.UNUSABLE, event.reason)


def choosing_failed(state: Choosing, event: ev.ChooseFailed, ctx: Context) -> Step:
    if event.gone and ctx.now >= state.give_up_at:
        return idle_gone(state, ev.RunGone(event.reason), ctx)
    delay = min(10.0, 0.5 * 2.0 ** min(state.failures, 6))
    after = replace(state, failures=state.failures + 1, retry_at=ctx.now + delay)
    return after, (Say(f"{event.reason}; looking again in {delay:.1f} s", "warning"),)


def choosing_tick(state: Choosing, event: ev.Tick, ctx: Context) -> Step:
    if state.retry_at is None or ctx.now < state.retry_at:
        return state, ()
    pass_over = ctx.now >= state.give_up_at
    return replace(state, retry_at=None), (Choose(state.ledger.attempt + 1, state.ledger.resume, pass_over),)


# -- Launching -----------------------------------------------------------------------------------------


def launching_spawned(state: Launching, event: ev.Spawned, ctx: Context) -> Step:
    now, chosen = ctx.now, state.chosen
    live = Live(
        attempt=state.ledger.attempt,
        worker=event.worker,
        chosen=chosen,
        started_at=now,
        progress_at=now,
        phase=Phase.IMPORT,
        sealed_at=now,
        sealed_step=chosen.step,
        sealed_name=chosen.name or "",
        step=chosen.step,
    )
    if not state.ledger.leaving and not state.ledger.holding and not state.ledger.gone:
        resumed = f"resumes from {chosen.name}" if chosen.name else "starts at step 0"
        return Starting(state.ledger, live), (Say(f"attempt {live.attempt} {resumed} ({chosen.why})"),)
    why = "person" if state.ledger.holding else "notice"
    live = replace(live, notice=state.ledger.leaving)
    stopping = Stopping(
        state.ledger,
        live,
        why,
        state.ledger.holding or state.ledger.leaving,
        term_at=now + ctx.policy.grace,
        kill_at=now + ctx.policy.grace + KILL_AFTER,
        until_at=now + ctx.policy.grace if state.ledger.leaving_of == "signal" else None,
    )
    return stopping, (SignalWorker("stop"),)


def launching_failed(state: Launching, event: ev.SpawnFailed, ctx: Context) -> Step:
    failure = Failure(event.what, event.reason)
    return conclude(state.ledger, None, ctx, failure=failure)


def launching_notice(state: Launching, event: ev.Notice | ev.StopNow, ctx: Context) -> Step:
    return replace(state, ledger=replace(state.ledger, leaving=event.source, leaving_of=event.of)), ()


def remember_stop(state: Clearing | Launching, event: ev.StopAsked, ctx: Context) -> Step:
    """The run is held as soon as what is under way has ended."""
    ledger, actions = to_hold(state.ledger, event)
    return replace(state, ledger=ledger), actions


# -- Waiting -------------------------------------------------------------------------------------------


def waiting_tick(state: Waiting, event: ev.Tick, ctx: Context) -> Step:
    ledger = state.ledger
    if ledger.deadline is not None and ctx.now >= ledger.deadline:
        return leave(ledger, f"the deadline ({ledger.deadline_source})", "deadline")
    if ctx.now < prepares_at(state):
        return state, ()
    return choose(ledger, state.reason, ctx, start_at=state.until_at)


def waiting_restart(state: Waiting, event: ev.RestartAsked, ctx: Context) -> Step:
    after, actions = choose(state.ledger, f"restart asked by {event.source}", ctx)
    return after, (Answer(event.request, True, "starting again at once"), *actions)


# -- the same in all of them ---------------------------------------------------------------------------


def idle_gone(state: Clearing | Choosing | Waiting, event: ev.RunGone, ctx: Context) -> Step:
    code = ExitCode.BUSY if event.taken else ExitCode.CANNOT_WRITE
    return finish(replace(state.ledger, gone=event.reason, taken=event.taken), code, event.reason)


def remember_gone(state: Launching | Ending, event: ev.RunGone, ctx: Context) -> Step:
    return replace(state, ledger=replace(state.ledger, gone=event.reason, taken=event.taken)), ()


def idle_notice(state: Clearing | Choosing | Waiting, event: ev.Notice | ev.StopNow, ctx: Context) -> Step:
    return leave(state.ledger, event.source, event.of)


def idle_stop(state: Choosing | Waiting, event: ev.StopAsked, ctx: Context) -> Step:
    return hold_by_person(replace(state.ledger, holding=event.source, stop_request=event.request))


def idle_save(state: State, event: ev.SaveAsked, ctx: Context) -> Step:
    text = "no worker runs: there is nothing to save"
    return state, (Answer(event.request, False, text),) if event.request else (Say(text),)


def idle_warned(state: State, event: ev.Warned, ctx: Context) -> Step:
    return state, (Say(f"{event.source}: no worker runs, there is nothing to save"),)


def idle_restart(state: State, event: ev.RestartAsked, ctx: Context) -> Step:
    return state, (Answer(event.request, True, "an attempt is being started already"),)
