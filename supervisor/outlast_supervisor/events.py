"""Everything that can happen to a supervisor, as values: signals, timers, deaths, notifications, requests."""

from __future__ import annotations

from dataclasses import dataclass

from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Failure


@dataclass(frozen=True)
class Tick:
    """A timer came due."""


@dataclass(frozen=True)
class Paused:
    """Time stood still for this process (stopped, or the machine was suspended)."""

    seconds: float


@dataclass(frozen=True)
class LeftoversGone:
    """Nothing that an attempt started is left."""


@dataclass(frozen=True)
class LeftoversRemain:
    """Something is left; ``roots`` are those whose parent is not one of them."""

    pids: tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """The generation to resume from, or none; and the claim on the checkpoints folder is made."""

    attempt: int  # the number that was claimed
    name: str | None
    path: str | None
    step: int
    own: bool  # False where it is the run's start_from
    why: str
    replay_until: int  # the furthest step that an earlier attempt reported, 0 where unknown


@dataclass(frozen=True)
class Unusable:
    """Generations exist and none can be used."""

    reason: str


@dataclass(frozen=True)
class ChooseFailed:
    """The checkpoints could not be looked at or claimed (an I/O error); it is tried again."""

    reason: str
    unreadable: str  # name of a generation that could not be looked at, or empty


@dataclass(frozen=True)
class Spawned:
    """The worker runs."""

    worker: ProcessIdentity


@dataclass(frozen=True)
class SpawnFailed:
    """The worker's command could not be executed."""

    reason: str


@dataclass(frozen=True)
class Attached:
    """A trainer said READY; its identity is the kernel's word, not the message's."""

    trainer: ProcessIdentity
    rank: int
    step: int
    restored: str | None


@dataclass(frozen=True)
class Reported:
    """A trainer told its step or its phase."""

    step: int | None
    total: int | None
    loss: str | None
    phase: str | None


@dataclass(frozen=True)
class Saving:
    """A save in flight has written so many bytes."""

    written: int


@dataclass(frozen=True)
class Sealed:
    """A generation got its final name."""

    name: str
    step: int
    written: int
    seconds: float


@dataclass(frozen=True)
class SaveFailed:
    """A save failed and training goes on."""

    reason: str


@dataclass(frozen=True)
class Verified:
    """A sealed generation was read back whole and agrees with its index."""

    name: str
    healthy: bool


@dataclass(frozen=True)
class Rejected:
    """A sealed generation was read back and does not agree with its index."""

    name: str
    reason: str


@dataclass(frozen=True)
class Said:
    """The trainer's last word."""

    word: str


@dataclass(frozen=True)
class Raised:
    """The trainer reports the exception that ends it."""

    failure: Failure


@dataclass(frozen=True)
class FoundBad:
    """The trainer found, while restoring, that a generation is not what its index says."""

    name: str
    reason: str


@dataclass(frozen=True)
class Refused:
    """The trainer refuses to go on with this checkpoint or environment."""

    reason: str


@dataclass(frozen=True)
class Sick:
    """A loss or state was not finite at this step."""

    step: int


@dataclass(frozen=True)
class Drifted:
    """The environment differs from the one that the generation was saved in."""

    what: tuple[str, ...]


@dataclass(frozen=True)
class TrainerGone:
    """A trainer's process ended."""

    trainer: ProcessIdentity


@dataclass(frozen=True)
class WorkerExited:
    """The worker's first process ended; exactly one of code and signal is set."""

    code: int | None
    signal: int | None


@dataclass(frozen=True)
class Examined:
    """What the disk says of an attempt that ended; messages may be lost, files are not."""

    sealed_step: int | None  # the newest generation sealed by this attempt
    final: bool  # one of them is the run's last
    last_step: int  # newest line of its metrics
    failure: Failure | None  # the traceback at the end of its log
    tail: str  # the last lines of its log, for the message that the run is given up


@dataclass(frozen=True)
class Notice:
    """The machine goes, or a person wants the run saved and stopped for now."""

    source: str


@dataclass(frozen=True)
class Warned:
    """The cluster's warning signal came: what it means depends on how far the end is."""

    source: str


@dataclass(frozen=True)
class StopNow:
    """A second interrupt: end everything at once."""

    source: str


@dataclass(frozen=True)
class SaveAsked:
    """Save at the next boundary and go on; ``request`` is the id to answer, or empty."""

    source: str
    request: str


@dataclass(frozen=True)
class StopAsked:
    """A person stops the run; it is held afterwards."""

    source: str
    request: str


@dataclass(frozen=True)
class RestartAsked:
    """A person wants a new attempt of the same run."""

    source: str
    request: str


@dataclass(frozen=True)
class DeadlineKnown:
    """When the machine will be taken away, on the monotonic clock; None where that is not known."""

    at: float | None
    source: str


@dataclass(frozen=True)
class Audited:
    """The steps that were trained twice were compared."""

    text: str
    compared: int
    equal: bool


Event = (
    Tick
    | Paused
    | LeftoversGone
    | LeftoversRemain
    | Chosen
    | Unusable
    | ChooseFailed
    | Spawned
    | SpawnFailed
    | Attached
    | Reported
    | Saving
    | Sealed
    | SaveFailed
    | Verified
    | Rejected
    | Said
    | Raised
    | FoundBad
    | Refused
    | Sick
    | Drifted
    | TrainerGone
    | WorkerExited
    | Examined
    | Notice
    | Warned
    | StopNow
    | SaveAsked
    | StopAsked
    | RestartAsked
    | DeadlineKnown
    | Audited
)
