"""What status.json says: a view of the state for people and monitors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from outlast_jobs.contract import ExitCode

from .pace import interval
from .states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Running,
    Starting,
    State,
    Stopping,
    Waiting,
)

_NAMES: dict[type, str] = {
    Clearing: "clearing",
    Choosing: "choosing",
    Launching: "launching",
    Starting: "starting",
    Running: "running",
    Stopping: "stopping",
    Ending: "ending",
    Waiting: "waiting",
    Finished: "finished",
}


class Facts(Struct, frozen=True):
    """What the state does not hold."""

    run_id: str
    name: str
    host: str
    supervisor: str
    started: float  # unix seconds
    exclusion: str
    unjournaled: bool
    warnings: Sequence[str]
    rate: float | None  # steps a second
    shielded: bool  # the worker is expected to attach
    clock: float  # unix seconds minus monotonic seconds
    scheduler: str = ""  # the scheduler's job that this is, in words
    requeue: str = ""  # what becomes of it after the end
    between: tuple[float, float] | None = None  # bounds of an automatic cadence
    standby: Mapping[str, Any] | None = None  # its state, pid and bytes of memory


def snapshot(state: State, facts: Facts, now: float) -> dict[str, Any]:
    """The fields of status.json, ``as_of`` now (monotonic seconds)."""
    ledger = state.ledger
    view: dict[str, Any] = {
        "as_of": facts.clock + now,
        "run_id": facts.run_id,
        "name": facts.name,
        "host": facts.host,
        "supervisor": facts.supervisor,
        "started": facts.started,
        "state": _NAMES[type(state)],
        "reason": _reason(state),
        "attempt": ledger.attempt,
        "phase": None,
        "step": None,
        "total": None,
        "loss": None,
        "rate": None,
        "eta": None,
        "last_save": None,
        "verified": ledger.verified or None,
        "steps_at_risk": None,
        "seconds_at_risk": None,
        "counters": ledger.counters.to_dict(),
        "unprotected": ledger.unprotected or None,
        "unjournaled": facts.unjournaled,
        "violation": ledger.violation or None,
        "cadence": _cadence(state, facts),
        "audit": ledger.audit or None,
        "held": state.reason if isinstance(state, Finished) and state.code == ExitCode.HELD else None,
        "done": isinstance(state, Finished) and state.code == ExitCode.DONE,
        "exit_code": state.code if isinstance(state, Finished) else None,
        "deadline": facts.clock + ledger.deadline if ledger.deadline is not None else None,
        "deadline_from": ledger.deadline_source if ledger.deadline is not None else None,
        "pending": None,
        "exclusion": facts.exclusion,
        "scheduler": facts.scheduler or None,
        "requeue": facts.requeue or None,
        "standby": facts.standby and dict(facts.standby),
        "warnings": list(facts.warnings),
        "restored": None,
        "log": f"logs/attempt-{ledger.attempt:04d}.log" if ledger.attempt else None,
    }
    if isinstance(state, (Starting, Running, Stopping, Ending)):
        view.update(_of_worker(state, facts, now))
    return view


def _of_worker(state: Starting | Running | Stopping | Ending, facts: Facts, now: float) -> dict[str, Any]:
    live = state.live
    left = live.total - live.step if live.total is not None else None
    saved: dict[str, Any] | None = None
    if live.sealed_name:
        saved = {
            "generation": live.sealed_name,
            "step": live.sealed_step,
            "at": None if live.sealed_name == live.chosen.name else facts.clock + live.sealed_at,
            "seconds": state.ledger.saves[-1] if live.seals else None,
        }
    bare = isinstance(state, Starting) and not facts.shielded
    return {
        "state": "running" if bare else _NAMES[type(state)],
        "phase": None if bare else live.phase,
        "step": live.step,
        "total": live.total,
        "loss": live.loss or None,
        "rate": facts.rate,
        "eta": left / facts.rate if left is not None and facts.rate else None,
        "last_save": saved,
        "steps_at_risk": max(0, live.step - live.sealed_step),
        "seconds_at_risk": now - live.sealed_at if live.attached else None,
        "restored": live.chosen.name,
        "pending": _pending(state, now),
        "trainers": [t.pid for t in live.trainers],
        "worker": live.worker.pid,
    }


def _cadence(state: State, facts: Facts) -> dict[str, Any] | None:
    """The automatic cadence; the job file tells any other."""
    if facts.between is None or isinstance(state, Finished):
        return None
    found = interval(facts.between, state.ledger, getattr(state, "live", None))
    return {"seconds": found.seconds, "reason": found.reason}


def _pending(state: Starting | Running | Stopping | Ending, now: float) -> str | None:
    live = state.live
    waited_for = ""
    if isinstance(state, Stopping):
        waited_for = state.detail or state.why
    elif live.save_wanted:
        waited_for = f"save asked by {live.save_wanted[0]}"
    if not waited_for:
        return None
    if live.stepped_at is None:
        return f"{waited_for} pending, no boundary yet, in phase {live.phase}"
    return f"{waited_for} pending, last boundary {now - live.stepped_at:.0f} s ago, in phase {live.phase}"


def _reason(state: State) -> str:
    match state:
        case Finished() | Waiting():
            return state.reason
        case Stopping():
            return state.detail or state.why
        case Choosing() | Launching():
            return state.cause
        case Clearing():
            return "ending what is left of an earlier attempt"
        case _:
            return ""
