"""The data of the loader scripts: every sample says which it is and what it drew from each stream."""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any

import numpy as np
import torch


class Noisy:
    """A map-style dataset that augments from all three process-wide streams, a differing number of times."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        for _ in range(index % 3):
            random.gauss(0.0, 1.0)
            np.random.randn()
            torch.randn(1)
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


def collate(samples: list[tuple[int, float, float, float]]) -> list[list[float]]:
    """A collate function that draws too, as one that masks or mixes samples does."""
    return [*map(list, samples), [random.random(), float(np.random.rand()), float(torch.rand(()))]]


def streams() -> str:
    """A digest of the process-wide streams."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes()
    return hashlib.sha256(pickle.dumps(states)).hexdigest()


def take(data: Any, count: int, accumulate: int = 1) -> list[Any]:
    """As the training loop does: draw batches across epochs, commit after each group of them."""
    taken: list[Any] = []
    iterator = iter(data)
    while len(taken) < count:
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(data)
            continue
        taken.append([list(data.last_ids), batch])
        if len(taken) % accumulate == 0:
            data.consumed()
    return taken
