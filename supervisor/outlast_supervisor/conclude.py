"""An attempt's end: the facts are put together, classed and counted, and what follows is ordered."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from outlast_jobs import events as journal
from outlast_jobs import restart
from outlast_jobs.contract import ExitCode, ExitWord
from outlast_jobs.pacing import Past
from outlast_jobs.restart import Failure

from . import events as ev
from .actions import Action, Answer, Choose, Exit, Hook, Note, Say, SetAside
from .policy import Context
from .states import Choosing, Ending, Finished, Ledger, Live, Step, Waiting

PATIENCE = 60.0  # seconds for which an unreadable generation is tried again
_WORDS_KEPT = 300  # characters of a log's last line


def choose(ledger: Ledger, cause: str, ctx: Context, start_at: float | None = None) -> Step:
    """Look for the generation to resume from."""
    state = Choosing(ledger, cause, 0, ctx.now + PATIENCE, None)
    return state, (Choose(ledger.attempt + 1, ledger.resume, False, start_at),)


def hold_by_person(ledger: Ledger, after: tuple[Action, ...] = (), how: str = "stopped") -> Step:
    """The run is stopped by hand: it stays stopped until a person releases it. ``how`` is for whoever asked."""
    reason = f"stopped by {ledger.holding}; go on with: outlast run JOB --release"
    answer = (Answer(ledger.stop_request, True, f"{how}; the run is held"),) if ledger.stop_request else ()
    return Finished(ledger, ExitCode.HELD, reason), (
        *after,
        Note(journal.HELD, {"by": ledger.holding, "reason": "stopped by hand"}),
        *answer,
        Exit(ExitCode.HELD, reason),
    )


def to_hold(ledger: Ledger, event: ev.StopAsked) -> tuple[Ledger, tuple[Action, ...]]:
    """A person asks for a stop while something is under way; a second one has the first one's answer."""
    if ledger.holding:
        answer = Answer(event.request, True, f"being stopped already, by {ledger.holding}")
        return ledger, (answer,) if event.request else ()
    return replace(ledger, holding=event.source, stop_request=event.request), ()


def conclude(
    ledger: Ledger,
    ending: Ending | None,
    ctx: Context,
    *,
    examined: ev.Examined | None = None,
    failure: Failure | None = None,
) -> Step:
    """Class the end of an attempt and order what follows.

    ``ending`` is None where the worker could not be executed at all, of which ``failure`` says why.
    """
    facts = _facts(ending, examined) if ending else restart.Ending(code=126, failure=failure)
    outcome = restart.classify(facts, ctx.policy.restart)
    counters, action = restart.decide(ledger.counters, outcome, ctx.policy.restart, ctx.chance)
    state_before = ledger.counters
    resume = action.resume if isinstance(action, restart.Again) else "newest"
    live = ending.live if ending else None
    past = _past(ledger, ending, str(outcome.kind), facts.stopped_by)
    ledger = replace(ledger, counters=counters, resume=resume, past=past)
    step = max(live.step, examined.last_step if examined else 0) if live else 0
    note = Note(
        journal.ATTEMPT_ENDED,
        {
            "attempt": ledger.attempt,
            "outcome": str(outcome.kind),
            "reason": outcome.reason,
            "code": facts.code,
            "signal": facts.signal,
            "step": step,
            "by": facts.stopped_by,
            "counters": counters.to_dict(),
            "next": resume,
            "signature": str(facts.failure.signature) if facts.failure else None,
        },
    )
    note_back = _step_back(state_before, counters, resume, live, outcome.reason)
    told = f"attempt {ledger.attempt} ended at step {step}: {outcome.reason}{_last_words(outcome, examined)}"
    said = Say(told, _level(outcome.kind))
    before: tuple[Action, ...] = (
        note,
        *note_back,
        said,
        *_unprotected(facts, outcome.kind, ctx),
        *_unanswered(live),
    )
    if live and live.bad:
        name, reason = live.bad
        if not live.chosen.own:
            action = restart.Unusable(f'start_from "{name}" cannot be used: {reason}')
        else:
            before = (*before, SetAside(name, reason))
    if ending and ending.why == "audit" and isinstance(action, restart.Again):
        action = restart.GiveUp(f"the replay differs: {ending.detail}")
    if ledger.gone and not isinstance(action, restart.Done):
        return finish(ledger, ExitCode.BUSY if ledger.taken else ExitCode.CANNOT_WRITE, ledger.gone, before)
    if ledger.holding and isinstance(action, restart.Again):
        return hold_by_person(ledger, before, outcome.reason if live and not facts.saved else "stopped")
    since = ending.ended_at if ending else ctx.now
    return _order(ledger, action, since, ctx, before, examined)


def _last_words(outcome: restart.Outcome, examined: ev.Examined | None) -> str:
    """What a worker that left by itself wrote last, where nothing else tells why: a usage error, for one."""
    e = outcome.ending
    crashed = outcome.kind in (restart.Kind.CRASHED, restart.Kind.CRASHED_PROGRESS)
    if not crashed or e.failure is not None or e.code is None or examined is None:
        return ""
    lines = (line.rpartition("\r")[2].strip() for line in examined.tail.splitlines()[::-1])
    words = next((line for line in lines if line), "")
    if not words or words.startswith("--- outlast: "):  # the header of a log without a line
        return ""
    return f'; its log ends with "{"".join(c if c.isprintable() else "?" for c in words[:_WORDS_KEPT])}"'


def _unprotected(facts: restart.Ending, kind: restart.Kind, ctx: Context) -> tuple[Action, ...]:
    """A job that says that its script uses the library, and is done without it: nobody would have noticed a loss."""
    if kind is not restart.Kind.DONE or facts.attached or facts.sealed or not ctx.policy.shielded:
        return ()
    text = 'no Checkpointer was entered, so nothing was saved; use it in the script, or take "signals: outlast" out'
    return (Say(text, "warning"),)


def _past(ledger: Ledger, ending: Ending | None, kind: str, by: str | None) -> Past:
    """What the attempt adds to what an automatic cadence goes by."""
    if ending is None:
        return ledger.past
    live = ending.live
    past = ledger.past.saved(*live.costs)
    return past.ended(ending.ended_at - live.started_at, kind, by) if live.attached else past


def _step_back(
    before: restart.Counters, after: restart.Counters, resume: str, live: Live | None, reason: str
) -> tuple[Action, ...]:
    """Record that an older generation is tried for one start, and what that showed."""
    name = live.chosen.name if live else None
    if resume == "older":
        return (Note(journal.STEPPED_BACK, {"generation": name, "reason": reason}),)
    if before.stepped_back is not None and after.stepped_back is None:
        return (Note(journal.STEP_BACK_SETTLED, {"generation": name, "reason": reason}),)
    return ()


def _order(
    ledger: Ledger,
    action: restart.Action,
    since: float,
    ctx: Context,
    before: tuple[Action, ...],
    examined: ev.Examined | None,
) -> Step:
    match action:
        case restart.Done(reason):
            return finish(
                ledger,
                ExitCode.DONE,
                f"complete: {reason}",
                (*before, Note(journal.DONE, {"attempt": ledger.attempt}), Hook("done", reason)),
            )
        case restart.GiveUp(reason):
            return _give_up(ledger, reason, before, examined)
        case restart.HoldSick(reason):
            return _give_up(ledger, f"sick: {reason}", before, examined)
        case restart.Unusable(reason):
            return finish(ledger, ExitCode.UNUSABLE, reason, before)
        case restart.Again(delay, _, reason):
            return _again(ledger, since + delay, reason, ctx, before)


def _again(ledger: Ledger, until_at: float, reason: str, ctx: Context, before: tuple[Action, ...]) -> Step:
    if ledger.leaving:
        text = f"not done, stopped by {ledger.leaving}: run me again"
        return finish(ledger, ExitCode.SAVED, text, before)
    if until_at > ctx.now:  # the delay counts from the worker's end, not from the end of our looking
        waiting = Waiting(ledger, until_at, reason)
        return waiting, (*before, Say(f"next attempt in {until_at - ctx.now:.1f} s"))
    choosing, look = choose(ledger, reason, ctx)
    return choosing, (*before, *look)


def _give_up(ledger: Ledger, reason: str, before: tuple[Action, ...], examined: ev.Examined | None) -> Step:
    counters = ledger.counters
    tail = examined.tail if examined else ""
    data: dict[str, Any] = {
        "reason": reason,
        "signature": str(counters.last) if counters.last else None,
        "counters": counters.to_dict(),
        "tail": tail,
    }
    says: tuple[Action, ...] = (Say(f"the last lines of its log:\n{tail}", "error"),) if tail else ()
    answer = (Answer(ledger.stop_request, True, "ended"),) if ledger.stop_request else ()
    actions = (
        *before,
        Note(journal.GAVE_UP, data),
        Note(journal.HELD, {"by": "outlast", "reason": reason}),
        *says,
        *answer,
        Hook("given_up", reason),
    )
    return finish(ledger, ExitCode.HELD, f"given up: {reason}", actions)


def finish(ledger: Ledger, code: int, reason: str, before: tuple[Action, ...] = ()) -> Step:
    """End the supervisor; whoever asked for a stop that is still under way gets its answer."""
    answer: tuple[Action, ...] = ()
    if ledger.stop_request and code != ExitCode.HELD:
        answer = (Answer(ledger.stop_request, True, reason),)
    return Finished(ledger, code, reason), (*before, *answer, Exit(code, reason))


def _facts(ending: Ending, examined: ev.Examined | None) -> restart.Ending:
    live = ending.live
    chosen_step = live.chosen.step
    sealed = live.seals > 0 or live.wrote
    final, last_step = False, live.step
    found = live.failure
    if examined:
        sealed = sealed or (examined.sealed_step is not None and examined.sealed_step > chosen_step)
        last_step = max(last_step, examined.last_step)
        # a script may train on after the last of some steps: then that generation is one as any other
        final = examined.final and last_step <= (examined.sealed_step or 0)
        if found is None and ExitWord.SAVED not in live.words and (ending.code or ending.signal):
            found = examined.failure
    by: Literal["person", "restart", "notice"] | None = None
    if ending.why in ("person", "restart", "notice"):
        by = ending.why  # type: ignore[assignment]
    return restart.Ending(
        code=ending.code,
        signal=ending.signal,
        attached=live.attached,
        words=live.words,
        failure=found,
        phase=live.phase,
        notice=bool(live.notice),
        sealed=sealed,
        trained=max(0, last_step - chosen_step),
        alive_seconds=ending.ended_at - live.started_at,
        hung=live.hung or None,
        bad=live.bad[1] if live.bad else None,
        refused=live.refused or None,
        final_sealed=final,
        sick_step=live.sick,
        stopped_by=by,
        given=live.chosen.name is not None,
        left=ending.left,
        oom_kills=examined.oom_kills if examined else 0,
    )


def _unanswered(live: Live | None) -> tuple[Action, ...]:
    if live is None:
        return ()
    return tuple(Answer(r, False, "the attempt ended before a save") for r in live.save_requests)


def _level(kind: restart.Kind) -> str:
    return "info" if kind in (restart.Kind.DONE, restart.Kind.SAVED) else "warning"
