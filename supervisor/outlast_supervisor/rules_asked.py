"""What is decided while a worker runs and somebody asks, or time passes."""

from __future__ import annotations

from msgspec.structs import replace

from outlast_jobs import cadence
from outlast_jobs import events as journal

from . import events as ev
from .actions import Answer, Note, Say, SignalAll, SignalTrainers, SignalWorker
from .policy import Context
from .rules_live import KILL_AGAIN, fit_times, stop, within_grace
from .rules_silence import silent
from .states import Alive, Ledger, Running, Starting, Step, Stopping

ASK_AGAIN = 1.0  # seconds after which a save signal is passed on although the one before brought nothing yet
SOURCES_KEPT = 8


# -- what others ask ---------------------------------------------------------------------------------------


def notice(state: Starting | Running, event: ev.Notice, ctx: Context) -> Step:
    ledger: Ledger = replace(state.ledger, leaving=event.source, leaving_of=event.of)
    state = replace(state, ledger=ledger, live=replace(state.live, notice=event.source))
    text = f"{event.source}: the worker {_told(state, ctx)}, within {ctx.policy.grace:.0f} s"
    note = Note(journal.NOTICE, {"signal": event.source})
    after, actions = stop(state, "notice", event.source, ctx, note, Say(text))
    return (within_grace(after, ctx) if event.of == "signal" else after), actions


def _told(state: Starting | Running, ctx: Context) -> str:
    """What a stop means to it; nothing is known of what a script without the library saves."""
    with_library = ctx.policy.shielded or isinstance(state, Running)
    return "saves at the next boundary and ends" if with_library else "is told to end"


def stop_now(state: Alive, event: ev.StopNow, ctx: Context) -> Step:
    ledger = replace(state.ledger, leaving=event.source, leaving_of=event.of)
    live = replace(state.live, notice=event.source)
    why = state.why if isinstance(state, Stopping) else "notice"
    after = Stopping(
        ledger, live, why, event.source, term_at=None, kill_at=None, again_at=ctx.now + KILL_AGAIN
    )
    return after, (Say(f"{event.source}: ending at once, without a save", "warning"), SignalAll("kill"))


def run_gone(state: Alive, event: ev.RunGone, ctx: Context) -> Step:
    state = replace(state, ledger=replace(state.ledger, gone=event.reason, taken=event.taken))
    after, actions = stop_now(state, ev.StopNow(event.reason), ctx)
    return after, (Say(event.reason, "error"), *actions)


def warned(state: Starting | Running, event: ev.Warned, ctx: Context) -> Step:
    how = ctx.policy.on_usr1
    if how == "stop":
        return notice(state, ev.Notice(event.source, "warning"), ctx)
    if how == "auto":
        fit = _fit(state, ctx)
        if isinstance(fit, cadence.StopNow):
            return notice(state, ev.Notice(f"{event.source}, {fit.reason}", "warning"), ctx)
        if isinstance(fit, cadence.TrainOn):
            return state, (
                Note(journal.NOTICE, {"signal": event.source}),
                Say(f"{event.source}: training on, {fit.reason}"),
            )
    return save_asked(state, ev.SaveAsked(event.source, ""), ctx)


def save_asked(state: Starting | Running, event: ev.SaveAsked, ctx: Context) -> Step:
    live = state.live
    # many signals at once are one save, as the worker's flag is one bit; a later one may find the first lost
    again = live.wanted_at is None or ctx.now - live.wanted_at >= ASK_AGAIN or bool(event.request)
    live = replace(
        live,
        save_wanted=(*live.save_wanted, event.source)[-SOURCES_KEPT:],
        wanted_at=ctx.now if again else live.wanted_at,
        save_requests=(*live.save_requests, event.request) if event.request else live.save_requests,
    )
    state = replace(state, live=live)
    note = Note(journal.RELAYED, {"signal": "save", "from": event.source})
    if isinstance(state, Running):
        return state, (note, SignalTrainers("save")) if again else ()
    if ctx.policy.shielded:
        return state, (Say(f"{event.source}: the save waits until the trainer attaches"),)
    return state, (note, SignalWorker("save"))


def save_unheard(state: Starting | Running, event: ev.SaveUnheard, ctx: Context) -> Step:
    live = state.live
    reason = f"no save: the command has no handler for {event.signal}, which would end it"
    answers = [Answer(request, False, reason) for request in live.save_requests]
    live = replace(live, save_wanted=(), wanted_at=None, save_requests=())
    return replace(state, live=live), (Say(reason, "warning"), *answers)


def stop_asked(state: Starting | Running, event: ev.StopAsked, ctx: Context) -> Step:
    ledger = replace(state.ledger, holding=event.source, stop_request=event.request)
    state = replace(state, ledger=ledger, live=replace(state.live, notice=event.source))
    return stop(
        state, "person", event.source, ctx, Say(f"stopped by {event.source}: the worker {_told(state, ctx)}")
    )


def restart_asked(state: Starting | Running, event: ev.RestartAsked, ctx: Context) -> Step:
    state = replace(state, live=replace(state.live, notice=event.source))
    answer = Answer(event.request, True, "saving and starting again")
    return stop(state, "restart", event.source, ctx, answer, Say(f"restart asked by {event.source}"))


# -- time --------------------------------------------------------------------------------------------------


def tick(state: Starting | Running, event: ev.Tick, ctx: Context) -> Step:
    fit = _fit(state, ctx)
    if isinstance(fit, cadence.StopNow) and state.ledger.deadline is not None:
        source = f"the deadline ({state.ledger.deadline_source}), {fit.reason}"
        return notice(state, ev.Notice(source, "deadline"), ctx)
    if isinstance(state, Starting):
        return state, ()
    return silent(state, ctx)


def _fit(state: Starting | Running, ctx: Context) -> cadence.StopNow | cadence.TrainOn | cadence.FarAway:
    step, save = fit_times(state.ledger, state.live, ctx.policy.grace)
    return cadence.last_fit(ctx.now, state.ledger.deadline, step, save, ctx.policy.warn)
