"""States, events and a context for the tests of the state table."""

from __future__ import annotations

from msgspec.structs import replace

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Policy as RestartPolicy
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.policy import Context, Policy
from outlast_supervisor.rules_begin import begin
from outlast_supervisor.states import (
    Ledger,
    Live,
    Running,
    State,
)
from outlast_supervisor.table import decide

ME = ProcessIdentity(100, 1, "boot")
TRAINER = ProcessIdentity(101, 2, "boot")
FRESH = ev.Chosen(1, None, None, 0, True, "no generation yet", 0)
RESUMED = ev.Chosen(2, "step-000000100.a0001", "/x", 100, True, "the newest", 130)


def policy(**changes: object) -> Policy:
    base = Policy(restart=RestartPolicy(backoff=(1.0, 60.0)), save=SavePolicy(None, 600.0))
    return replace(base, **changes)


def live(chosen: ev.Chosen = FRESH, **changes: object) -> Live:
    base = Live(
        attempt=chosen.attempt,
        worker=ME,
        chosen=chosen,
        started_at=0.0,
        progress_at=0.0,
        phase="import",
        sealed_at=0.0,
        sealed_step=chosen.step,
        sealed_name=chosen.name or "",
        step=chosen.step,
    )
    return replace(base, **changes)


def running(chosen: ev.Chosen = FRESH, ledger: Ledger | None = None, **changes: object) -> Running:
    changes = {"attached": True, "trainers": (TRAINER,), "phase": "train", **changes}
    return Running(ledger or Ledger(attempt=chosen.attempt), live(chosen, **changes))


def context(now: float = 5.0, **changes: object) -> Context:
    return Context(policy(**changes), now, 0.5)


def walk(
    *events: ev.Event, policy_changes: dict[str, object] | None = None, now: float = 5.0
) -> tuple[State, list[act.Action]]:
    state, actions = begin(Ledger(), now)
    done = list(actions)
    for event in events:
        state, actions = decide(state, event, context(now, **(policy_changes or {})))
        done += actions
    return state, done


STARTED = (ev.LeftoversGone(), FRESH, ev.Spawned(ME), ev.Attached(TRAINER, 0, 0, None))
ENDED = (ev.LeftoversGone(), ev.Examined(None, False, 0, None, "tail"))
