"""Everything that a decision can order: what the loop carries out, each a value that a test can compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .events import Chosen


class Note(Struct, frozen=True):
    """Write a record to the journal; what follows it and changes the world waits until it is on disk."""

    event: str
    data: Mapping[str, Any] = {}


class Say(Struct, frozen=True):
    """Tell the person who watches."""

    text: str
    level: str = "info"  # info, warning, error


class EndLeftovers(Struct, frozen=True):
    """Look for what an attempt left behind and signal it: ``look`` sends nothing."""

    how: str  # look, term, kill


class Choose(Struct, frozen=True):
    """Find the generation to resume from and claim the checkpoints folder for this attempt."""

    attempt: int
    resume: str  # newest; older: step back one generation, for this start only; healthy: prefer a healthy one
    pass_over: bool  # what could not be read for a minute is passed over
    start_at: float | None = None  # monotonic; the worker may be got ready before, and not be executed


class Spawn(Struct, frozen=True):
    """Launch the worker."""

    attempt: int
    chosen: Chosen
    cause: str


class SignalTrainers(Struct, frozen=True):
    """Send each attached trainer the signal of a role."""

    role: str  # save, stop, stacks


class SignalWorker(Struct, frozen=True):
    """Send the worker's first process a signal, before anyone attached."""

    role: str  # save, stop


class SignalAll(Struct, frozen=True):
    """Send everything that the attempt started a signal."""

    how: str  # term, kill


class Examine(Struct, frozen=True):
    """Read from disk what an ended attempt left."""

    attempt: int
    # seconds to finish the save first that its buffer holds; 0 where there is none
    finish_within: float = 0.0


class Look(Struct, frozen=True):
    """Read from disk how far the running attempt is, before it is judged by its silence."""

    attempt: int


class Verify(Struct, frozen=True):
    """Read a sealed generation back whole."""

    name: str


class SetAside(Struct, frozen=True):
    """Rename a generation out of the way; its reason is in the journal."""

    name: str
    reason: str


class Prune(Struct, frozen=True):
    """Apply the retention policy."""

    resumed_from: str | None


class Audit(Struct, frozen=True):
    """Compare the steps that this attempt trained again with the earlier attempt's."""

    attempt: int


class Answer(Struct, frozen=True):
    """Answer a request."""

    request: str
    ok: bool
    text: str


class Hook(Struct, frozen=True):
    """Run the command that the job file names for this occasion."""

    name: str
    reason: str


class Exit(Struct, frozen=True):
    """End the supervisor."""

    code: int
    reason: str
    at_once: bool = False  # without waiting for hooks, helpers and the journal


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
    | Look
    | Verify
    | SetAside
    | Prune
    | Audit
    | Answer
    | Hook
    | Exit
)
