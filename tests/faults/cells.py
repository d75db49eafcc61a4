"""States and events in many variants, for attacks on the state table that leave no cell out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Counters, Failure
from outlast_jobs.restart import Policy as RestartPolicy
from outlast_supervisor import events as ev
from outlast_supervisor.policy import Context, Policy
from outlast_supervisor.states import (
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

NOW = 1000.0
WORKER = ProcessIdentity(100, 1, "boot")
TRAINER = ProcessIdentity(101, 2, "boot")
OTHER = ProcessIdentity(102, 3, "boot")
OWN = "step-000000100.a0001"
FRESH = ev.Chosen(2, None, None, 0, True, "no generation yet", 0)
RESUMED = ev.Chosen(2, OWN, "/x", 100, True, "the newest", 130)
STARTED_FROM = ev.Chosen(2, OWN, "/x", 100, False, "start_from", 0)
FAILURE = Failure("ValueError", "x", "a.py:1", 5, "train")
IN_RESTORE = Failure("ValueError", "x", "a.py:1", None, "restore")

LEDGERS = [
    Ledger(attempt=2, **goes, **till)
    for goes in (
        {},
        {"leaving": "SIGTERM"},
        {"holding": "ann", "stop_request": "held-1"},
        {"holding": "ann"},
        {"gone": "the run directory was removed"},
        {"leaving": "SIGTERM", "holding": "ann", "stop_request": "held-1"},
    )
    for till in ({}, {"deadline": NOW + 50, "deadline_source": "test"}, {"deadline": NOW - 1})
] + [
    Ledger(attempt=2, unprotected="ENOSPC", violation="late", resume="older", counters=Counters(4, 4, 4, 4, 4, 700.0)),
]  # fmt: skip


def live(chosen: ev.Chosen = FRESH, **changes: object) -> Live:
    """A worker that was launched ten seconds ago."""
    at = NOW - 10
    base = Live(
        attempt=2,
        worker=WORKER,
        chosen=chosen,
        started_at=at,
        progress_at=at,
        phase="import",
        sealed_at=at,
        sealed_step=chosen.step,
        sealed_name=chosen.name or "",
        step=chosen.step,
    )
    return replace(base, **changes)


_ATTACHED: dict[str, object] = {"attached": True, "trainers": (TRAINER,), "phase": "train"}
LIVES = [
    live(chosen, **changes)
    for chosen in (FRESH, RESUMED, STARTED_FROM)
    for changes in (
        {},
        _ATTACHED,
        {**_ATTACHED, "save_requests": ("save-1", "save-2"), "save_wanted": ("a", "b"), "wanted_at": NOW - 9},
        {**_ATTACHED, "phase": "save", "step": 140, "trained": 40, "stepped_at": NOW - 1},
        {**_ATTACHED, "words": frozenset({"done"}), "seals": 1, "sealed_step": 150},
        {**_ATTACHED, "words": frozenset({"saved"}), "notice": "SIGTERM", "seals": 1},
        {**_ATTACHED, "failure": FAILURE, "progress_at": NOW - 4000, "sealed_at": NOW - 4000},
        {**_ATTACHED, "look_at": NOW - 40, "asked_at": NOW - 700, "sealed_at": NOW - 2000},
        {"failure": IN_RESTORE, "bad": (OWN, "sha256"), "refused": "identity"},
        {"hung": "silent", "sick": 7},
    )
]

POLICIES = [
    Policy(RestartPolicy(), SavePolicy(10, 600.0)),
    Policy(
        RestartPolicy(without_progress=1, waiting=0.0, backoff=(0.0, 0.0), never_on=(1,), sick="continue"),
        SavePolicy(None, 60.0),
        grace=0.0,
        on_usr1="stop",
        hang_min=1.0,
        audit="stop",
        shielded=False,
    ),
    Policy(RestartPolicy(free_on=(1, 137)), SavePolicy(1, None), warn=0.0, on_usr1="save"),
]
CONTEXTS = [Context(policy, NOW, chance) for policy in POLICIES for chance in (0.0, 0.999)]


def states() -> Iterator[State]:
    """Every state with every ledger, and those with a worker with every worker."""
    soon, late = NOW + 1, NOW - 1
    for ledger in LEDGERS:
        for look, kill, sent in (
            (soon, None, "look"),
            (None, None, "look"),
            (late, late, "term"),
            (None, soon, "term"),
            (late, None, "kill"),
        ):
            yield Clearing(ledger, "start", look, kill, late, sent)
        if not ledger.holding:  # a person's stop is obeyed before these are entered
            for give_up, retry in ((soon, None), (late, late), (soon, soon)):
                yield Choosing(ledger, "start", 3, give_up, retry)
            yield Waiting(ledger, late, "crashed")
            yield Waiting(ledger, soon, "crashed")
        yield Finished(ledger, 75, "stopped")
        for chosen in (FRESH, RESUMED):
            yield Launching(ledger, chosen, "start")
        for worker in LIVES:
            yield from _with_worker(ledger, worker, soon, late)


def _with_worker(ledger: Ledger, worker: Live, soon: float, late: float) -> Iterator[State]:
    if not (ledger.leaving or ledger.holding or ledger.gone):  # whoever was told to go is in Stopping
        yield Running(ledger, worker) if worker.attached else Starting(ledger, worker)
    for why, (term, kill, again) in itertools.product(
        ("notice", "person", "restart", "hung", "sick", "refused", "audit"),
        ((soon, soon + 2, None), (late, soon, None), (None, late, None), (None, None, late)),
    ):
        yield Stopping(ledger, worker, why, "why", term, kill, again)
    for why, code, signal, (look, kill, sent, examining) in itertools.product(
        ("", "notice", "hung", "audit"),
        (0, 1, 75, None),
        (None,),
        (
            (None, None, "look", False),
            (late, late, "term", False),
            (late, None, "kill", False),
            (soon, None, "look", True),
            (late, None, "kill", True),
        ),
    ):
        number = 9 if code is None else signal
        yield Ending(ledger, worker, why, "why", code, number, NOW - 2, look, kill, sent, examining)


def happenings() -> Iterator[ev.Event]:
    """Every event in the variants that decisions tell apart."""
    seal = ev.Sealed("step-000000150.a0002", 150, 10, 0.1)
    yield from (
        ev.Tick(),
        ev.Paused(5.0),
        ev.LeftoversGone(),
        ev.LeftoversRemain((7, 8)),
        ev.LeftoversRemain(()),
    )
    yield from (FRESH, RESUMED, STARTED_FROM, ev.Unusable("all corrupt"))
    yield from (ev.ChooseFailed("EIO", ""), ev.ChooseFailed("gone", "", gone=True))
    yield from (
        ev.Spawned(WORKER),
        ev.SpawnFailed("ENOENT"),
        ev.RunGone("removed"),
        ev.RunGone("taken", taken=True),
    )
    for step in (None, 0, 100):
        yield ev.Attached(OTHER, 0, step, None)
    yield ev.SaveUnheard("SIGUSR1")
    for step, age in itertools.product((0, 90, 10**18), (0.5, -9.0)):
        yield from (ev.Wrote("checkpoint", step, age), ev.Wrote("last.ckpt", step, age, numbered=False))
    for step, phase in itertools.product((None, 0, 1, 101, 10**18), (None, "train", "save", "odd")):
        yield ev.Reported(step, 10, "0.5", phase)
    yield from (ev.Saving(0), ev.Saving(10**18), seal, ev.Sealed(OWN, 100, 0, 0.0), ev.SaveFailed("ENOSPC"))
    yield from (
        ev.Looked(0, None, None, None),
        ev.Looked(160, 0.1, seal, 0.5),
        ev.Looked(1, -5.0, seal, -9.0),
    )
    yield from (ev.Verified(seal.name, True), ev.Verified(seal.name, False), ev.Rejected(seal.name, "sha256"))
    yield from (ev.Said("done"), ev.Said("saved"), ev.Said("x"), ev.Raised(FAILURE), ev.Raised(IN_RESTORE))
    yield from (ev.FoundBad(OWN, "sha256"), ev.FoundBad("../x", ""), ev.Refused("identity"))
    yield from (ev.Sick(0), ev.Sick(7), ev.Drifted(()), ev.TrainerGone(TRAINER), ev.TrainerGone(OTHER))
    yield from (ev.WorkerExited(0, None), ev.WorkerExited(75, None), ev.WorkerExited(None, 9))
    yield from (ev.Examined(None, False, 0, None, ""), ev.Examined(150, True, 150, FAILURE, "tail"))
    yield from (ev.Notice("SIGTERM"), ev.Warned("SIGUSR1"), ev.StopNow("a second SIGINT"))
    for request in ("", "asked-1"):
        yield from (ev.SaveAsked("me", request), ev.StopAsked("me", request), ev.RestartAsked("me", request))
    yield from (
        ev.DeadlineKnown(NOW + 9, "test"),
        ev.DeadlineKnown(NOW - 9, "test"),
        ev.DeadlineKnown(None, ""),
    )
    yield from (ev.Audited("2 of 2", 2, True), ev.Audited("differs", 2, False))
