"""The words of a proof: legs, which are launches of the worker, and flows, which are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["reference", "repeat", "cut", "control", "probe"]
Way = Literal["stop", "kill", "save"]

WAYS: Mapping[Way, str] = {
    "stop": "stop: save and exit",
    "kill": "kill: SIGKILL between saves",
    "save": "save: save, go on, SIGKILL",
}

EXTRA = "extra"
"""The script's own plain values, among the names of parts."""
RNG = "rng/"
"""What the names of the process-wide random streams begin with, among the names of parts."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One launch of the job's command in a scratch run directory."""

    name: str
    run: str  # the scratch run's folder
    attempt: int = 1
    resume: str = ""  # the leg whose newest generation is resumed from
    stop_at: int | None = None
    cut: str = ""  # as in the environment: SIGTERM@5
    every_steps: int | None = None
    leave_out: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def fresh(self) -> bool:
        return not self.resume


@dataclass(frozen=True, slots=True)
class Flow:
    """Legs in order, and what they are to show."""

    name: str
    kind: Kind
    legs: tuple[Leg, ...]
    way: Way | None = None
    cut: int | None = None
    part: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a leg ended."""

    leg: Leg
    code: int | None = None
    signal: int | None = None
    failure: Mapping[str, Any] | None = None  # what the worker reported of an exception
    refused: str = ""
    timed_out: bool = False
    not_started: str = ""  # why it could not be launched
    tail: str = ""  # the last lines of its log
    generation: Path | None = None  # the newest that its run had then
    files: Path | None = None  # a copy of its run, where the job saves files of its own
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return self.code == 0

    @property
    def said(self) -> str:
        """How it ended, in words."""
        if self.not_started:
            return self.not_started
        if self.timed_out:
            return "made no progress and was ended"
        if self.refused:
            return f"refused: {self.refused}"
        if self.failure:
            return f"{self.failure.get('exception')}: {self.failure.get('message')}"
        how = f"exit code {self.code}" if self.code is not None else f"signal {self.signal}"
        last = self.tail.strip().splitlines()
        return f"{how}; its log ends with: {last[-1]}" if last and self.code else how
