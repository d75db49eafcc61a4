"""A state copied into a buffer as a worker does it, for the tests of what others make of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outlast_jobs.claim import claim
from outlast_jobs.generation import GenerationName
from outlast_worker.buffer import Buffer
from outlast_worker.imaging import Plan, Snapshot, into, plan
from outlast_worker.noting import fill, note_down
from outlast_worker.outliving import Outliving
from outlast_worker.saving import IndexFields, index_of, seal_taken, take_state
from outlast_worker.sources import Mode

RUN = "a" * 32


def state_of(**parts: Any) -> dict[str, Any]:
    """A state of step 7 with these parts."""
    counters = {"step": 7, "epoch": 0, "batch_in_epoch": 1}
    more = {"kinds": dict.fromkeys(parts, "stateful"), "losses": [[7, 0.5]], "rng": {}, "extra": {"a": [1]}}
    return {"schema": "outlast.meta/1", "parts": parts, "counters": counters, **more}


def zoo() -> dict[str, Any]:
    """Tensors of several kinds, in two shards, one of them larger than a block."""
    base = torch.randn(100, 50)
    return {
        "large": torch.randn(2_200_000),
        "turned": base.t(),
        "tied": base,
        "half": torch.randn(71, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "empty": torch.zeros(0),
        "infinite": torch.tensor([float("inf"), -float("inf")]),
        "number": torch.tensor(3),
    }


@dataclass
class Copy:
    """A copy in a buffer, and where its generation belongs."""

    checkpoints: Path
    state: dict[str, Any]
    buffer: Buffer
    planned: Plan
    snapshot: Snapshot
    outliving: Outliving

    def seal(self, attempt: int = 1) -> Path:
        """As its own worker does it."""
        return seal_taken(
            self.checkpoints,
            GenerationName(7, attempt),
            self.planned.taken,
            self.state["counters"],
            run_id=RUN,
            fields=IndexFields(),
            images=self.snapshot.images(),
            meta=self.outliving.meta,
            began=time.monotonic(),
        ).path


def copied(checkpoints: Path, state: dict[str, Any], *, attempt: int = 1, healthy: bool = True) -> Copy:
    """Copy a state of attempt 1, note what it is, and say that it is right."""
    checkpoints.mkdir(exist_ok=True)
    claim(checkpoints, attempt)
    planned = plan(take_state(state))
    buffer = Buffer(planned.size)
    name = GenerationName(7, attempt)
    index = index_of(name, state["counters"], RUN, IndexFields(healthy=healthy), None, 0.0)

    def note() -> memoryview | None:
        fill(planned, buffer)
        return note_down(planned, buffer, name, index, time.monotonic())

    outliving = Outliving(7, buffer, note)
    snapshot = into(buffer, planned, Mode.AT_ONCE, {})
    outliving.note_down()
    outliving.right()
    return Copy(checkpoints, state, buffer, planned, snapshot, outliving)
