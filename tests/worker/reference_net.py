"""The small run that the tests of the reference functions save, change and load."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from outlast_worker import TrainState


class Small:
    """A model, an optimizer with two groups, a scheduler, a private generator and the counters."""

    def __init__(self, seed: int = 1, steps: int = 3, hidden: int = 6) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.Dropout(0.2), nn.Linear(hidden, 2))
        weights = [p for name, p in self.net.named_parameters() if name.endswith("weight")]
        biases = [p for name, p in self.net.named_parameters() if name.endswith("bias")]
        groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.noise = np.random.default_rng(seed)
        self.state = TrainState()
        self.train(steps)

    @property
    def four(self) -> tuple[Any, Any, Any, TrainState]:
        """As the functions take them."""
        return self.net, self.optimizer, self.scheduler, self.state

    @property
    def three(self) -> tuple[Any, Any, Any]:
        """As a load takes them."""
        return self.net, self.optimizer, self.scheduler

    def train(self, steps: int) -> list[float]:
        """Steps that draw from each stream; their losses."""
        losses = []
        for _ in range(steps):
            scale = random.random() + np.random.rand() + self.noise.random()
            self.optimizer.zero_grad()
            loss = (self.net(scale * torch.ones(3, 4)) ** 2).mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
            self.state.step += 1
            self.state.batch_in_epoch += 1
        self.state.losses += losses
        return losses
