"""What is decided of a worker that is silent, or seals nothing: the disk is asked first, then it is judged."""

from __future__ import annotations

from msgspec.structs import replace

from outlast_jobs import cadence, hang
from outlast_jobs import events as journal
from outlast_jobs.contract import Phase

from . import events as ev
from .actions import Action, Hook, Note, Say, SignalTrainers
from .pace import paced
from .policy import Context
from .rules_live import LOOK_PATIENCE, ask_allowance, look, steps_overdue, take_in, watched_phase
from .states import Live, Running, Starting, Step, Stopping

STACKS_SECONDS = 1.0  # for the dump of all stacks to reach the log before TERM goes
HUNG_GRACE = 10.0  # a hung worker seldom saves: it gets this long, or the job's grace where that is shorter


def silent(state: Running, ctx: Context) -> Step:
    """Judge the worker's silence; where it looks bad, see first what it has left on disk."""
    since = state.live.look_at
    if since is not None:
        return _judge(state, ctx) if ctx.now >= since + LOOK_PATIENCE else (state, ())
    if _hang(state.live, ctx) is None and _overdue(state, ctx) is None:
        return state, ()
    return look(state, ctx)


def looked(state: Starting | Running, event: ev.Looked, ctx: Context) -> Step:
    """A message may be lost, or the channel broken, without any harm to the worker: what is on disk counts."""
    if isinstance(state, Starting):
        return state, ()
    live, ledger, actions = state.live, state.ledger, tuple[Action, ...]()
    found = event.sealed
    if found is not None and found.step > live.sealed_step:
        at = max(live.sealed_at, min(ctx.now, ctx.now - (event.sealed_age or 0.0)))
        live, ledger, actions = take_in(found, live, ledger, at)
        live = replace(live, progress_at=max(live.progress_at, at))
    newer = event.step > live.step
    if newer:
        live = replace(live, step=event.step, trained=event.step - live.chosen.step, stepped_at=ctx.now)
    # a line from the future, of a clock that was set back since, is life only as long as it is news
    if event.step and event.age is not None and (newer or event.age >= 0.0):
        live = replace(live, progress_at=max(live.progress_at, min(ctx.now, ctx.now - event.age)))
    after, more = _judge(replace(state, live=live, ledger=ledger), ctx)
    return after, (*actions, *more)


def _judge(state: Running, ctx: Context) -> Step:
    state = replace(state, live=replace(state.live, look_at=None))
    found = _hang(state.live, ctx)
    if found is not None:
        return _hung(state, found, ctx)
    steps = steps_overdue(state.live, ctx)
    due = cadence.Ask(steps) if steps is not None else _overdue(state, ctx)
    return (state, ()) if due is None else _ask(state, due, ctx)


def _hang(live: Live, ctx: Context) -> hang.Hung | None:
    silent = ctx.now - live.progress_at
    return hang.hung(watched_phase(live), silent, live.times, ctx.policy.hang_min, live.attached)


def _overdue(state: Running, ctx: Context) -> cadence.Ask | cadence.Violation | None:
    live = state.live
    if live.phase == Phase.SAVE or live.words:  # after its last word it saves no more
        return None
    save = paced(ctx.policy, state.ledger, live)
    return cadence.overdue(ctx.now, live.sealed_at, live.asked_at, save, ask_allowance(state.ledger, live))


def _hung(state: Running, found: hang.Hung, ctx: Context) -> Step:
    live = replace(state.live, hung=found.reason)
    grace = min(ctx.policy.grace, HUNG_GRACE)
    after = Stopping(
        state.ledger,
        live,
        "hung",
        found.reason,
        term_at=ctx.now + STACKS_SECONDS,
        kill_at=ctx.now + STACKS_SECONDS + grace,
    )
    data = {"phase": found.phase, "seconds": found.seconds, "limit": found.limit}
    return after, (
        Note(journal.HUNG, data),
        Say(f"hung: {found.reason}; its stacks are in the log, then it is ended", "warning"),
        Hook("hung", found.reason),
        SignalTrainers("stacks"),
    )


def _ask(state: Running, due: cadence.Ask | cadence.Violation, ctx: Context) -> Step:
    live = replace(state.live, asked_at=ctx.now)
    if isinstance(due, cadence.Ask):
        level = "info" if ctx.policy.between is None else "debug"  # what is asked for each time is no news
        return replace(state, live=live), (Say(due.reason, level), SignalTrainers("save"))
    first = not state.ledger.violation
    says: tuple[Action, ...] = (Say(f"cadence violated: {due.reason}", "warning"),) if first else ()
    ledger = replace(state.ledger, violation=due.reason)
    note = Note(journal.VIOLATION, {"reason": due.reason})
    return replace(state, live=live, ledger=ledger), (note, *says, SignalTrainers("save"))
