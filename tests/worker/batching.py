"""Batches of a small dataset, and what the tests of batches ask of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from outlast_worker.batches import Batches, batches

SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))  # the loaders' processes import the dataset by this name, too

from loader_data import Noisy, collate, streams, take  # noqa: E402

__all__ = ["LENGTH", "PER_EPOCH", "SCRIPTS", "SIZE", "Noisy", "collate", "ids", "made", "streams", "take"]

LENGTH, SIZE, PER_EPOCH = 22, 4, 6


def made(length: int = LENGTH, size: int = SIZE, **options: Any) -> Batches:
    return batches(Noisy(length), size, **{"seed": 5, "collate_fn": collate, **options})


def ids(taken: list[Any]) -> list[list[int]]:
    return [batch_ids for batch_ids, _ in taken]
