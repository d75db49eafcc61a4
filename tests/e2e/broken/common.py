"""What the broken jobs share: a tiny model that dropout makes random, its data, and one update."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

STEPS, SAMPLES, BATCH = 12, 32, 4


def seed_all(seed: int = 1) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 1))


def make_data() -> Tensor:
    return torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(3))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """Another rate in every step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 20)


class Cursor:
    """Batches in an order of its own, with a state: the base of those data that get it wrong."""

    def __init__(self) -> None:
        self.samples = make_data()
        self.last_ids: list[int] = []
        self.done = 0  # batches of this epoch
        self.order = self.draw_order()

    def draw_order(self) -> list[int]:
        return list(range(SAMPLES))

    def __iter__(self) -> Iterator[Tensor]:
        while self.done < SAMPLES // BATCH:
            self.last_ids = self.order[self.done * BATCH : (self.done + 1) * BATCH]
            self.done += 1
            yield self.samples[self.last_ids]
        self.done, self.order = 0, self.draw_order()

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
