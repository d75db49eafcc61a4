"""What a run has been through, as the values that a new supervisor and all views of a run need.

Structs rather than dataclasses: making a dozen of those takes a tenth of the time that a start may take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outlast_jobs.pacing import VANISHED, Past

Stats = Mapping[str, list[int]]
"""What is remembered of a generation that was verified in full: file name to [inode, ctime_ns, size]."""


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt. Times are unix seconds, to be read by people."""

    number: int
    life: int
    host: str
    started: float
    resume: str | None = None  # the generation it was given
    cause: str | None = None  # why it was started
    attached: float | None = None
    restored: str | None = None  # the generation it said it restored
    ended: float | None = None
    outcome: str | None = None  # None while it runs
    reason: str | None = None
    code: int | None = None
    signal: int | str | None = None
    step: int | None = None  # the last one known
    signature: Any = None
    pauses: list[tuple[float, float]] = []  # from when until when its supervisor stood still; appended to


class Held(msgspec.Struct, frozen=True):
    """The run is not to be started until it is released, or the job file or code is another one."""

    by: str
    reason: str
    at: float
    job_digest: str | None
    code_digest: str | None


class Done(msgspec.Struct, frozen=True):
    """The run came to its end, by this command."""

    attempt: int | None
    command_digest: str | None
    at: float


class Sealed(msgspec.Struct, frozen=True):
    """A generation that was reported sealed and has not been dropped or set aside."""

    step: int | None
    bytes: int | None
    seconds: float | None
    at: float


class Verified(msgspec.Struct, frozen=True):
    """A generation whose every byte was read back and found right."""

    stats: Stats
    healthy: bool
    at: float


class Life(msgspec.Struct, frozen=True):
    """One supervisor's life; ``stopped`` is None where it runs, or was killed."""

    number: int
    host: str
    identity: str | None
    version: str | None
    started: float
    stopped: float | None = None
    code: int | None = None
    reason: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """What became of a request."""

    ok: bool
    text: str


class History(msgspec.Struct, frozen=True):
    """The whole journal, replayed."""

    attempts: tuple[AttemptRecord, ...] = ()
    life: Life | None = None
    """The newest life."""
    began: float | None = None
    job_digest: str | None = None
    command_digest: str | None = None
    code_digest: str | None = None
    counters: Mapping[str, Any] | None = None
    """The restart counters as the newest attempt's end recorded them; None to begin anew."""
    next_resume: str | None = None
    """Which generation the newest attempt's end said to take next: newest, older, healthy."""
    held: Held | None = None
    done: Done | None = None
    sealed: Mapping[str, Sealed] = {}
    verified: Mapping[str, Verified] = {}
    quarantined: Mapping[str, str] = {}
    """Why each of these generations was set aside."""
    pins: frozenset[str] = frozenset()
    past: Past = Past()
    """What an automatic cadence goes by."""
    saves: tuple[float, ...] = ()
    """Durations of the newest saves, seconds."""
    last_audit: Mapping[str, Any] | None = None
    answers: Mapping[str, Answer] = {}
    """The newest answers by the request's id."""
    damage: tuple[str, ...] = ()
    """What of the journal could not be read; the generations themselves have the last word."""

    def released(self, counters: Mapping[str, Any] | None = None) -> History:
        """As after a release: who asks for one wants the run tried again, so what counts against it is gone."""
        return msgspec.structs.replace(self, held=None, next_resume=None, counters=counters)

    @property
    def highest_attempt(self) -> int:
        """Of the journal alone: combine it with the run directory's, which a lost journal does not lower."""
        return max((attempt.number for attempt in self.attempts), default=0)

    @property
    def vanished(self) -> AttemptRecord | None:
        """The newest attempt, where nothing tells how it ended: the previous attempt vanished."""
        newest = self.attempts[-1] if self.attempts else None
        return newest if newest is not None and newest.outcome == VANISHED else None

    @property
    def counted(self) -> Mapping[str, Any]:
        """The counters to go on with. Of two that vanished unsealed in a row all may have been killed for memory."""
        lost = [a for a in self.attempts[-2:] if a.outcome == VANISHED and a.step is None]
        return {**(self.counters or {}), **({"tight": True} if len(lost) == 2 else {})}

    @property
    def remembered(self) -> dict[str, Stats]:
        """Stats of the generations verified in full, as verification wants them."""
        return {name: verified.stats for name, verified in self.verified.items()}
