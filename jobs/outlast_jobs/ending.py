"""How an attempt ended: the facts, the policy that bears on them, and the one kind that they make."""

from __future__ import annotations

import enum
import signal
from typing import Literal, Protocol

from msgspec import Struct

from outlast_jobs.contract import ExitCode, ExitWord, Phase
from outlast_jobs.failure import Failure

ALIVE_IS_PROGRESS = 60.0
"""Seconds alive that count as progress for a worker that never attached: nothing else is known of it."""
SIGNALLED = 128
"""Shells add this to a signal's number to make an exit status."""


class Kind(enum.StrEnum):
    """How an attempt ended."""

    DONE = "done"
    # preempted, or stopped on request: starts again at once and is never held against the run
    SAVED = "saved"
    CRASHED_PROGRESS = "crashed_progress"
    CRASHED = "crashed"
    HUNG = "hung"
    BAD_GENERATION = "bad_generation"
    REFUSED = "refused"
    SICK = "sick"


class RestartLike(Protocol):
    """The `restart` section of a job file, as far as it matters here."""

    @property
    def without_progress(self) -> int: ...
    @property
    def waiting(self) -> float: ...
    @property
    def backoff(self) -> tuple[float, float]: ...
    @property
    def never_on(self) -> tuple[int, ...]: ...
    @property
    def free_on(self) -> tuple[int, ...]: ...


class Policy(Struct, frozen=True):
    """Everything in a job file that bears on starting again."""

    without_progress: int = 5
    waiting: float = 600.0
    backoff: tuple[float, float] = (1.0, 60.0)
    never_on: tuple[int, ...] = ()
    free_on: tuple[int, ...] = ()
    sick: str = "stop"

    @classmethod
    def of(cls, restart: RestartLike, sick: str) -> Policy:
        return cls(
            restart.without_progress,
            restart.waiting,
            restart.backoff,
            restart.never_on,
            restart.free_on,
            sick,
        )


class Ending(Struct, frozen=True):
    """The facts of one attempt's end, with no judgement in them."""

    code: int | None = None
    signal: int | None = None
    attached: bool = False
    words: frozenset[str] = frozenset()
    failure: Failure | None = None
    phase: str | None = None
    notice: bool = False  # a notice was given, or seen to go to the worker
    sealed: bool = False  # a generation past the restored step
    trained: int = 0  # whole steps since the restore
    alive_seconds: float = 0.0
    hung: str | None = None  # why we ended it as hung
    bad: str | None = None  # what was wrong with the generation it was given
    refused: str | None = None
    final_sealed: bool = False
    sick_step: int | None = None
    stopped_by: Literal["person", "restart", "notice"] | None = None
    given: bool = True  # a generation to restore; without one its first failure is no generation's fault
    left: bool = False  # it ended by itself, without a trainer, and what it had started went on
    oom_kills: int = 0  # processes that the kernel killed around us meanwhile, for lack of memory

    @property
    def status(self) -> int | None:
        """As a shell would show it: the exit code, or 128 and the signal's number."""
        return self.code if self.signal is None else SIGNALLED + self.signal

    @property
    def saved(self) -> bool:
        """Whether it left with a save of its own."""
        return ExitWord.SAVED in self.words or self.code == ExitCode.SAVED

    @property
    def complete(self) -> bool:
        """The training is: by the trainer's word, or a final generation. What follows it may still fail."""
        return self.final_sealed or (self.attached and ExitWord.DONE in self.words)

    @property
    def short(self) -> bool:
        """Whether it may have ended for want of memory, by the kernel's word or its own."""
        if self.saved:
            return False  # it was another's process that was killed around us
        return self.oom_kills > 0 or (self.failure is not None and self.failure.of_memory)

    @property
    def progress(self) -> bool:
        # a seal counts also where no message arrived; only of one that sealed nothing the time has to tell
        alone = not self.attached and not self.left
        return self.sealed or (alone and self.alive_seconds >= ALIVE_IS_PROGRESS)


class Outcome(Struct, frozen=True):
    """How an attempt's end is classed, why, and the facts it was classed by."""

    kind: Kind
    reason: str
    ending: Ending = Ending()


def classify(ending: Ending, policy: Policy) -> Outcome:
    """Every ending has exactly one kind; the first rule that fits says which."""
    for rule in (_said, _stopped, _saved, _exited_zero):
        if found := rule(ending, policy):
            return Outcome(*found, ending)
    kind = Kind.CRASHED_PROGRESS if ending.progress else Kind.CRASHED
    return Outcome(kind, _crash_reason(ending), ending)


def _said(e: Ending, policy: Policy) -> tuple[Kind, str] | None:
    """What the worker said, or what lies on disk, outranks the exit code; done needs a clean one as well."""
    if e.bad is not None:
        return Kind.BAD_GENERATION, e.bad
    if e.refused is not None:
        return Kind.REFUSED, e.refused
    if e.sick_step is not None and policy.sick == "stop":
        return Kind.SICK, f"loss or state not finite from step {e.sick_step} on"
    if e.complete and e.code == 0 and e.signal is None:
        by_word = e.attached and ExitWord.DONE in e.words
        return Kind.DONE, "the trainer said that it is done" if by_word else "the final generation is sealed"
    if e.hung is not None:
        return Kind.HUNG, e.hung
    if e.code == ExitCode.UNUSABLE and (e.attached or e.phase == Phase.RESTORE):
        return Kind.REFUSED, f"the trainer exited {e.code}: an integrity failure"
    return None


def _stopped(e: Ending, _policy: Policy) -> tuple[Kind, str] | None:
    if e.stopped_by is None:
        return None
    by = {"person": "by a person", "restart": "for a restart", "notice": "after a notice"}[e.stopped_by]
    return Kind.SAVED, f"stopped {by}, " + (
        "saved" if e.saved else f"ended by {_status(e)} without a save of its own"
    )


def _saved(e: Ending, _policy: Policy) -> tuple[Kind, str] | None:
    if ExitWord.SAVED in e.words or (e.code == ExitCode.SAVED and e.failure is None):
        if e.notice or e.progress:
            return Kind.SAVED, "saved after a notice" if e.notice else "saved, with progress"
        return Kind.CRASHED, f"said saved ({_status(e)}) without a notice and without progress"
    if e.status == SIGNALLED + signal.SIGTERM and (e.notice or not e.attached) and e.failure is None:
        when = " after a notice" if e.notice else ""
        return Kind.SAVED, f"ended by SIGTERM{when}, without a word of a save"
    return None


def _exited_zero(e: Ending, _policy: Policy) -> tuple[Kind, str] | None:
    if e.code != 0 or e.signal is not None:
        return None
    if not e.attached and e.failure is None and e.phase != Phase.RESTORE and not e.left:
        return Kind.DONE, "exited 0"
    kind = Kind.CRASHED_PROGRESS if e.progress else Kind.CRASHED
    why = "what it had started went on" if e.left else "perhaps a wrapper swallowed its exit code"
    why = f": {e.failure.signature}" if e.failure else f", {why}"
    return kind, f"exited 0 without the trainer's word that it is done{why}"


def _status(e: Ending) -> str:
    if e.signal is not None:
        try:
            return signal.Signals(e.signal).name
        except ValueError:
            return f"signal {e.signal}"
    return f"exit {e.code}" if e.code is not None else "an unknown exit"


def _crash_reason(e: Ending) -> str:
    reason = _plain_reason(e) + ("; the kernel was out of memory and killed for it" if e.oom_kills else "")
    if e.complete:
        return f"the training is complete, but what follows it failed: {reason}"
    return reason


def _plain_reason(e: Ending) -> str:
    if e.failure is not None:
        message = f": {e.failure.message}" if e.failure.message else ""
        return f"{e.failure.signature}{message} [{_status(e)}]"
    if e.signal is not None:
        return f"killed by {_status(e)}, which was not ours"
    if e.code is not None and e.code > SIGNALLED and e.code - SIGNALLED in set(signal.Signals):
        return f"exit {e.code}, as a shell shows {signal.Signals(e.code - SIGNALLED).name}"
    if e.attached and e.code == ExitCode.CANNOT_WRITE:
        return f"exit {e.code}: the state could not be saved"
    return _status(e)
