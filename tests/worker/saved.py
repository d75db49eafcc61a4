"""A state with what tends to go wrong, and generations of it for tests: saved, and sealed again over a change."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast_jobs.contract import Schema
from outlast_jobs.generation import INDEX, INDEX_DIGEST, META, GenerationName, digest_line
from outlast_worker.parts import Parts
from outlast_worker.rng import capture_rng_state
from outlast_worker.saving import IndexFields, Saved, save_generation

NAME = GenerationName(7, 1)
FILES = [INDEX, INDEX_DIGEST, META, "model.shard-000.pt", "model.shard-001.pt"]


def whole_state() -> dict[str, Any]:
    """All buckets, with what tends to go wrong in each."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(60, 60, bias=False), torch.nn.Linear(60, 60, bias=False))
    net[1].weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
    net(torch.randn(3, 60)).sum().backward()
    optimizer.step()
    scheduler.step()
    trees, kinds = Parts(
        {
            "model": net,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "noise": np.random.default_rng(3),
            "mt": np.random.Generator(np.random.MT19937(3)),
            "shuffle": random.Random(3),
            "generator": torch.Generator(),
        }
    ).capture()
    return {
        "schema": Schema.META,
        "parts": trees,
        "kinds": kinds,
        "counters": {"step": 7, "epoch": 1, "batch_in_epoch": 2},
        "losses": [[6, 0.5], [7, float("nan")]],
        "rng": capture_rng_state(),
        "extra": {"best": np.float32(0.1), "seen": {1, 2}, "view": torch.arange(1000.0)[3:5]},
    }


def save(checkpoints: Path, state: dict[str, Any] | None = None, **options: Any) -> Saved:
    options.setdefault("fields", IndexFields(reason="test"))
    return save_generation(checkpoints, NAME, state or whole_state(), run_id="r1", **options)


def reseal(path: Path, change: Callable[[dict[str, Any]], None] = lambda index: None) -> None:
    """Make index and digests right again over whatever the files are now."""
    index = json.loads((path / INDEX).read_text())
    for member, entry in index["files"].items():
        if (path / member).is_file():
            data = (path / member).read_bytes()
            entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    change(index)
    data = json.dumps(index).encode()
    (path / INDEX).write_bytes(data)
    (path / INDEX_DIGEST).write_bytes(digest_line(data))
