"""The states of a supervisor: who enters each, who leaves it, and exactly the data that it has.

Clearing    from the start, while anything of an earlier attempt is left; to Choosing
Choosing    a helper looks for the generation to resume from; to Launching, Waiting or Finished
Launching   the record of the attempt goes to disk, then the worker is executed; to Starting
Starting    the worker runs, no trainer has attached; to Running, Stopping or Ending
Running     a trainer is attached; to Stopping or Ending
Stopping    the worker was told to end; to Ending when its first process is gone
Ending      what it left behind is ended and its traces are read; to Choosing, Waiting or Finished
Waiting     a delay before the next attempt; to Choosing or Finished
Finished    the exit code is known

Field names that end in ``_at`` are instants of the monotonic clock, in seconds.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from outlast_jobs.hang import PhaseTimes
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.pacing import Past
from outlast_jobs.restart import Counters, Failure

from .actions import Action
from .events import Chosen

T = TypeVar("T", bound=Struct)


class Ledger(Struct, frozen=True):
    """What every state carries on: what the journal would say if it were read again now."""

    attempt: int = 0  # number of the newest attempt
    counters: Counters = Counters()
    deadline: float | None = None  # monotonic; not an ``_at``: it comes no later when time stands still here
    deadline_source: str = ""
    verified: str = ""  # newest generation that was read back whole
    unprotected: str = ""  # why saves fail at present
    violation: str = ""  # how the cadence is broken at present
    resume: str = "newest"  # what the newest attempt's end said to take next: newest, older, healthy
    audit: str = ""  # verdict of the newest replay audit
    leaving: str = ""  # who gave the notice after which this supervisor ends
    leaving_of: str = ""  # of what kind it was: signal, warning, deadline, now
    holding: str = ""  # the person who stopped the run
    stop_request: str = ""  # id of the request to answer at the end
    gone: str = ""  # what happened to the run directory
    taken: bool = False  # and whether another supervisor has the run
    past: Past = Past()  # what an automatic cadence goes by, up to the newest attempt's end
    saves: tuple[float, ...] = ()  # durations of the latest saves, of older attempts too, seconds


class Live(Struct, frozen=True):
    """A worker that was launched, and all that is known of it."""

    attempt: int
    worker: ProcessIdentity
    chosen: Chosen
    started_at: float
    progress_at: float  # last sign of life
    phase: str
    sealed_at: float  # last seal, or the attach, or the launch
    sealed_step: int
    sealed_name: str
    step: int
    trained: int = 0  # steps reported since the restore
    stepped_at: float | None = None
    total: int | None = None
    loss: str = ""
    trainers: tuple[ProcessIdentity, ...] = ()
    attached: bool = False
    seals: int = 0
    wrote: bool = False  # a script without the library has written a further checkpoint
    save_wanted: tuple[str, ...] = ()  # sources whose save is not done yet
    look_at: float | None = None  # since when the disk is asked how far the worker is
    wanted_at: float | None = None  # when the latest of them was passed on
    save_requests: tuple[str, ...] = ()  # ids to answer at the next seal
    asked_at: float | None = None  # when the supervisor asked for an overdue save
    words: frozenset[str] = frozenset()
    failure: Failure | None = None
    bad: tuple[str, str] | None = None
    refused: str = ""
    sick: int | None = None
    hung: str = ""
    notice: str = ""  # a notice was given to the worker
    audited: bool = False
    times: PhaseTimes = PhaseTimes()
    costs: tuple[float, ...] = ()  # what the training lost by the latest saves, seconds


class Clearing(Struct, frozen=True):
    ledger: Ledger
    cause: str  # why this life begins
    look_at: float | None  # when to look again; None while a look is under way
    kill_at: float | None  # when KILL goes to what is left; None before TERM went and after KILL did
    tell_at: float  # when the person is told again what is waited for
    signalled: str  # look, term, kill: the strongest that was sent


class Choosing(Struct, frozen=True):
    ledger: Ledger
    cause: str
    failures: int  # looks that failed so far
    give_up_at: float  # from here on what cannot be read is passed over
    retry_at: float | None  # when to look again after a failure; None while a look is under way


class Launching(Struct, frozen=True):
    ledger: Ledger
    chosen: Chosen
    cause: str


class Starting(Struct, frozen=True):
    ledger: Ledger
    live: Live


class Running(Struct, frozen=True):
    ledger: Ledger
    live: Live


class Stopping(Struct, frozen=True):
    ledger: Ledger
    live: Live
    why: str  # notice, person, restart, hung, sick, refused, audit
    detail: str
    term_at: float | None  # when TERM goes to everything
    kill_at: float | None  # when KILL does; None after it was sent
    again_at: float | None = None  # when KILL is sent once more
    until_at: float | None = None  # until when the sender of a signal is known to wait


class Ending(Struct, frozen=True):
    ledger: Ledger
    live: Live
    why: str  # as in Stopping, or empty where it ended by itself
    detail: str
    code: int | None
    signal: int | None
    ended_at: float
    look_at: float | None  # when to look again for what is left, and while examining: until when to wait
    kill_at: float | None
    signalled: str  # look, term, kill
    examining: bool
    left: bool = False  # what it had started went on after it, and no trainer had attached


class Waiting(Struct, frozen=True):
    ledger: Ledger
    until_at: float
    reason: str


class Finished(Struct, frozen=True):
    ledger: Ledger
    code: int
    reason: str


State = Clearing | Choosing | Launching | Starting | Running | Stopping | Ending | Waiting | Finished
Alive = Starting | Running | Stopping
Step = tuple[State, tuple[Action, ...]]
"""What a decision comes to: the next state, and what is to be done, in order."""


def shifted(value: T, seconds: float) -> T:
    """The same value with every instant in it moved by ``seconds``: time stood still that long."""
    changes: dict[str, Any] = {}
    for name in value.__struct_fields__:
        old = getattr(value, name)
        if name.endswith("_at") and old is not None:
            changes[name] = old + seconds
        elif isinstance(old, (Ledger, Live)):
            changes[name] = shifted(old, seconds)
    return msgspec.structs.replace(value, **changes)
