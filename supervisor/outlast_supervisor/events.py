"""Everything that can happen to a supervisor, as values: signals, timers, deaths, notifications, requests."""

from __future__ import annotations

from msgspec import Struct

from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Failure


class Tick(Struct, frozen=True):
    """A timer came due."""


class Paused(Struct, frozen=True):
    """Time stood still for this process (stopped, or the machine was suspended)."""

    seconds: float


class LeftoversGone(Struct, frozen=True):
    """Nothing that an attempt started is left."""

    unsealed: int = 0  # bytes of a save that it had copied into its buffer and did not come to seal


class LeftoversRemain(Struct, frozen=True):
    """Something is left, these among it; none where it could not be looked at, or is not seen from here."""

    pids: tuple[int, ...]


class Chosen(Struct, frozen=True):
    """The generation to resume from, or none; and the claim on the checkpoints folder is made."""

    attempt: int  # the number that was claimed
    name: str | None
    path: str | None
    step: int
    own: bool  # False where it is the run's start_from
    why: str
    replay_until: int  # the furthest step that an earlier attempt reported, 0 where unknown
    verified: str = ""  # the newest that was read back whole, of those that are left


class Unusable(Struct, frozen=True):
    """Generations exist and none can be used."""

    reason: str
    verified: str = ""


class ChooseFailed(Struct, frozen=True):
    """The checkpoints could not be looked at or claimed (an I/O error); it is tried again."""

    reason: str
    unreadable: str  # name of a generation that could not be looked at, or empty
    gone: bool = False  # there is no run directory any more


class Spawned(Struct, frozen=True):
    """The worker runs."""

    worker: ProcessIdentity


class RunGone(Struct, frozen=True):
    """The run directory was moved, removed or replaced, so another supervisor can have its place."""

    reason: str
    taken: bool = False  # another supervisor has the run, as far as can be seen


class SpawnFailed(Struct, frozen=True):
    """The worker could not be started; ``what`` says at which act."""

    reason: str
    what: str = "cannot execute the worker"


class Attached(Struct, frozen=True):
    """A trainer said READY; its identity is the kernel's word, not the message's."""

    trainer: ProcessIdentity
    rank: int
    step: int | None  # None where READY itself was lost
    restored: str | None


class Reported(Struct, frozen=True):
    """A trainer told its step or its phase."""

    step: int | None
    total: int | None
    loss: str | None
    phase: str | None


class Saving(Struct, frozen=True):
    """A save in flight has written so many bytes."""

    written: int


class Sealed(Struct, frozen=True):
    """A generation got its final name."""

    name: str
    step: int
    written: int
    seconds: float
    cost: float | None = None  # how much of that the training lost; None for all of it


class Looked(Struct, frozen=True):
    """What the disk says of the running attempt; its messages may be lost or not heard at all."""

    step: int  # of the newest line of its metrics, 0 where there is none
    age: float | None  # seconds since that line was written, by a clock that may have been set
    sealed: Sealed | None  # its newest generation
    sealed_age: float | None  # seconds since that was saved


class Wrote(Struct, frozen=True):
    """A script without the library has written a checkpoint, which is whole."""

    name: str
    step: int
    age: float  # seconds since it was written, by a clock that may have been set
    numbered: bool = True  # its name has a step; one without is written over, and each time is progress


class SaveFailed(Struct, frozen=True):
    """A save failed and training goes on."""

    reason: str


class SaveUnheard(Struct, frozen=True):
    """A save was asked for, and the worker has no handler for its signal: it was not sent, since it would end it."""

    signal: str


class Verified(Struct, frozen=True):
    """A sealed generation was read back whole and agrees with its index."""

    name: str
    healthy: bool


class Rejected(Struct, frozen=True):
    """A sealed generation was read back and does not agree with its index."""

    name: str
    reason: str


class Said(Struct, frozen=True):
    """The trainer's last word."""

    word: str


class Raised(Struct, frozen=True):
    """The trainer reports the exception that ends it."""

    failure: Failure


class FoundBad(Struct, frozen=True):
    """The trainer found, while restoring, that a generation is not what its index says."""

    name: str
    reason: str


class Refused(Struct, frozen=True):
    """The trainer refuses to go on with this checkpoint or environment."""

    reason: str


class Sick(Struct, frozen=True):
    """A loss or state was not finite at this step."""

    step: int


class Drifted(Struct, frozen=True):
    """The environment differs from the one that the generation was saved in."""

    what: tuple[str, ...]


class TrainerGone(Struct, frozen=True):
    """A trainer's process ended."""

    trainer: ProcessIdentity


class WorkerExited(Struct, frozen=True):
    """The worker's first process ended; exactly one of code and signal is set."""

    code: int | None
    signal: int | None


class Examined(Struct, frozen=True):
    """What the disk says of an attempt that ended; messages may be lost, files are not."""

    sealed_step: int | None  # the newest generation sealed by this attempt
    final: bool  # one of them is the run's last
    last_step: int  # newest line of its metrics
    failure: Failure | None  # the traceback at the end of its log
    tail: str  # the last lines of its log, for the message that the run is given up
    oom_kills: int = 0  # processes around us that the kernel killed meanwhile, for lack of memory


class Notice(Struct, frozen=True):
    """The machine goes, or a person wants the run saved and stopped for now."""

    source: str  # for people; a signal's name where it was one
    of: str = "signal"  # signal, warning (the cluster's), deadline


class Warned(Struct, frozen=True):
    """The cluster's warning signal came: what it means depends on how far the end is."""

    source: str


class StopNow(Struct, frozen=True):
    """A second interrupt: end everything at once."""

    source: str
    of: str = "now"


class SaveAsked(Struct, frozen=True):
    """Save at the next boundary and go on; ``request`` is the id to answer, or empty."""

    source: str
    request: str


class StopAsked(Struct, frozen=True):
    """A person stops the run; it is held afterwards."""

    source: str
    request: str


class RestartAsked(Struct, frozen=True):
    """A person wants a new attempt of the same run."""

    source: str
    request: str


class DeadlineKnown(Struct, frozen=True):
    """When the machine will be taken away, on the monotonic clock; None where that is not known."""

    at: float | None
    source: str


class Audited(Struct, frozen=True):
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
    | RunGone
    | Attached
    | Reported
    | Saving
    | Sealed
    | Looked
    | Wrote
    | SaveFailed
    | SaveUnheard
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
