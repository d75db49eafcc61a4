"""Everything that a decision can order: what the loop carries out, each a value that a test can compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .events import Chosen


@dataclass(frozen=True)
class Note:
    """Write a record to the journal; what follows it and changes the world waits until it is on disk."""

    event: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Say:
    """Tell the person who watches."""

    text: str
    level: str = "info"  # info, warning, error


@dataclass(frozen=True)
class EndLeftovers:
    """Look for what an attempt left behind and signal it: ``look`` sends nothing."""

    how: str  # look, term, kill


@dataclass(frozen=True)
class Choose:
    """Find the generation to resume from and claim the checkpoints folder for this attempt."""

    attempt: int
    older: bool  # step back one generation, for this start only
    healthy: bool  # prefer a healthy one
    pass_over: bool  # what could not be read for a minute is passed over


@dataclass(frozen=True)
class Spawn:
    """Launch the worker."""

    attempt: int
    chosen: Chosen
    cause: str


@dataclass(frozen=True)
class SignalTrainers:
    """Send each attached trainer the signal of a role."""

    role: str  # save, stop, stacks


@dataclass(frozen=True)
class SignalWorker:
    """Send the worker's first process a signal, before anyone attached."""

    role: str  # save, stop


@dataclass(frozen=True)
class SignalAll:
    """Send everything that the attempt started a signal."""

    how: str  # term, kill


@dataclass(frozen=True)
class Examine:
    """Read from disk what an ended attempt left."""

    attempt: int


@dataclass(frozen=True)
class Verify:
    """Read a sealed generation back whole."""

    name: str


@dataclass(frozen=True)
class SetAside:
    """Rename a generation out of the way; its reason is in the journal."""

    name: str
    reason: str


@dataclass(frozen=True)
class Prune:
    """Apply the retention policy."""

    resumed_from: str | None


@dataclass(frozen=True)
class Audit:
    """Compare the steps that this attempt trained again with the earlier attempt's."""

    attempt: int


@dataclass(frozen=True)
class Answer:
    """Answer a request."""

    request: str
    ok: bool
    text: str


@dataclass(frozen=True)
class Hook:
    """Run the command that the job file names for this occasion."""

    name: str
    reason: str


@dataclass(frozen=True)
class Exit:
    """End the supervisor."""

    code: int
    reason: str


Action = (
    Note
    | Say
    | EndLeftovers
    | Choose
    | Spawn
    | SignalTrainers
    | SignalWorker
    | SignalAll
    | Examine
    | Verify
    | SetAside
    | Prune
    | Audit
    | Answer
    | Hook
    | Exit
)
