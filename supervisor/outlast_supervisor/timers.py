"""When a state wants to be looked at again, if nothing happens before."""

from __future__ import annotations

from outlast_jobs import cadence, hang
from outlast_jobs.contract import Phase

from .pace import paced
from .policy import Policy
from .rules_begin import prepares_at
from .rules_live import LOOK_PATIENCE, ask_allowance, fit_times, watched_phase
from .states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Ledger,
    Live,
    Running,
    Starting,
    State,
    Stopping,
    Waiting,
)

RECHECK = 1.0  # seconds until a save in flight is looked at again where it delays the cadence


def next_due(state: State, policy: Policy, now: float) -> float | None:
    """Monotonic instant of the next Tick; None where only an event can change anything."""
    match state:
        case Clearing():
            return _first(state.look_at, state.kill_at, state.tell_at)
        case Choosing():
            return state.retry_at
        case Starting():
            return deadline_due(state.ledger, state.live, policy, now)
        case Running():
            return _first(
                deadline_due(state.ledger, state.live, policy, now), *_running_due(state, policy, now)
            )
        case Stopping():
            return _first(state.term_at, state.kill_at, state.again_at)
        case Ending():
            if state.examining:  # only one that has to go does not wait for a disk that is silent
                return state.look_at if state.ledger.leaving or state.ledger.holding else None
            return _first(state.look_at, state.kill_at)
        case Waiting():
            return _first(prepares_at(state), state.ledger.deadline)
        case Launching() | Finished():
            return None


def _first(*instants: float | None) -> float | None:
    return min((i for i in instants if i is not None), default=None)


def deadline_due(ledger: Ledger, live: Live, policy: Policy, now: float) -> float | None:
    """When the known end next has a say in the attempt."""
    if ledger.deadline is None:
        return None
    step, save = fit_times(ledger, live, policy.grace)
    match cadence.last_fit(now, ledger.deadline, step, save, policy.warn):
        case cadence.TrainOn(until):
            return until
        case cadence.StopNow():
            return now
        case cadence.FarAway(until=until):
            return until


def _running_due(state: Running, policy: Policy, now: float) -> tuple[float | None, float | None]:
    live, save = state.live, paced(policy, state.ledger, state.live)
    if live.look_at is not None:
        return live.look_at + LOOK_PATIENCE, None
    limit = hang.limit(watched_phase(live), live.times, policy.hang_min, live.attached)
    hung_at = None if limit is None else live.progress_at + limit
    if live.words:
        return hung_at, None
    if live.phase == Phase.SAVE:
        return hung_at, None if save.every_seconds is None else now + RECHECK
    return hung_at, cadence.overdue_at(live.sealed_at, live.asked_at, save, ask_allowance(state.ledger, live))
