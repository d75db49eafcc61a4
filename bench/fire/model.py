"""The one training that every carrier carries: the same model, batches and step, whoever saves it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

TOTAL = 1_000_000
"""Steps that no run of the comparison reaches: what counts is how far each has come."""

torch.set_num_threads(1)


def make_model(width: int) -> nn.Sequential:
    """Three square layers: 3 · width² parameters, and AdamW keeps two more numbers for each."""
    torch.manual_seed(7)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def batch(step: int, width: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, (16, width) and (16, 1); drawn from the step's own stream."""
    own = torch.Generator().manual_seed(step)
    features = torch.randn(16, width, generator=own)
    return features, features.sum(1, keepdim=True).tanh()


class Progress:
    """Tells the comparison which process trains, and which step its state has reached."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "step", os.O_WRONLY | os.O_CREAT, 0o600)

    def at(self, step: int) -> None:
        os.pwrite(self._file, b"%12d" % step, 0)
