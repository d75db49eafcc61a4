"""What a leg left of its steps: read from its metrics, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast_jobs.contract import Schema

Line = Mapping[str, Any]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Track:
    """One leg's steps, and the state as its training found it."""

    restored_step: int = 0
    restored: str | None = None
    start: Line = field(default_factory=dict)
    steps: Mapping[int, Line] = field(default_factory=dict)
    attached: bool = False

    @property
    def files(self) -> bool:
        """Whether the job has no Checkpointer and was recorded at the files that it saved."""
        return bool(self.start.get("files"))

    @property
    def last(self) -> int:
        return max(self.steps, default=self.restored_step)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        found = self.start.get("fingerprint")
        return found if isinstance(found, dict) else {}

    def record(self, step: int) -> Record:
        """The digests at the boundary of a step; at the restored one those of the start."""
        line = self.start if step == self.restored_step else self.steps.get(step, {})
        found = line.get("proof")
        return found if isinstance(found, dict) else {}


def read_track(path: Path) -> Track:
    """A leg's metrics; what is torn or damaged is left out."""
    try:
        with open(path, "rb") as file:
            return track_of(line for raw in file if (line := _parsed(raw)) is not None)
    except FileNotFoundError:
        return Track()


def track_of(lines: Iterable[Line]) -> Track:
    """The track that these lines make."""
    header: Line = {}
    start: Line = {}
    steps: dict[int, Line] = {}
    for line in lines:
        if line.get("schema") == Schema.METRICS:
            header = line
        elif "start" in line:
            start = line
        elif type(step := line.get("step")) is int:
            steps[step] = line
    return Track(
        restored_step=int(header.get("restored_step") or 0),
        restored=header.get("restored"),
        start=start,
        steps=steps,
        attached=bool(header),
    )


def idle_streams(track: Track) -> frozenset[str]:
    """Random streams that a whole run never drew from, between its first step and its last."""
    records = [track.record(step) for step in (track.restored_step, *track.steps)]
    places = [record.get("places", {}) for record in records if record]
    names = set().union(*places) if places else set()
    return frozenset(name for name in names if len({p.get(name) for p in places}) == 1)


def _parsed(raw: bytes) -> Line | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
