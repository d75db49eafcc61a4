"""The training that the demonstration cuts: a small network whose every step draws from each random stream.

It uses no Checkpointer, only the functions that any script can: the recipe in docs/recipe.md, as a program.
Run as a module it is the second process: it resumes from a folder, trains to the end and prints its losses.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from outlast_worker.folder import CheckpointFolder
from outlast_worker.trainstate import TrainState


@dataclass(frozen=True)
class Setup:
    """The sizes of the training, and its seed."""

    total_steps: int = 30
    seed: int = 11
    batches: int = 5  # in an epoch
    batch: int = 4
    inputs: int = 16
    hidden: int = 24
    outputs: int = 4

    def to_json(self) -> str:
        """As it is handed to the second process."""
        return json.dumps(asdict(self))


class Training:
    """Everything that a run has: all of it is made first, then restored."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        random.seed(setup.seed)
        np.random.seed(setup.seed)
        torch.manual_seed(setup.seed)
        self.model = nn.Sequential(
            nn.Linear(setup.inputs, setup.hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(setup.hidden, setup.outputs),
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=setup.total_steps)
        private = torch.Generator().manual_seed(setup.seed)
        rows = setup.batches * setup.batch
        self.inputs = torch.randn(rows, setup.inputs, generator=private)
        self.targets = torch.randn(rows, setup.outputs, generator=private)
        self.state = TrainState()

    def resume(self, folder: CheckpointFolder) -> None:
        """Go on from the newest checkpoint that is whole."""
        self.state = folder.resume(self.model, self.optimizer, self.scheduler)

    def save(self, folder: CheckpointFolder) -> Path:
        """Save between two steps."""
        return folder.save(self.model, self.optimizer, self.scheduler, self.state)

    def train(self, until: int, after_step: Callable[[], object] | None = None) -> None:
        """Steps up to ``until``, across epochs."""
        state = self.state
        while state.step < until:
            loss = self._update(self._rows())
            state.step += 1
            state.batch_in_epoch += 1
            state.losses.append(loss)
            if state.batch_in_epoch == self.setup.batches:
                state.epoch, state.batch_in_epoch = state.epoch + 1, 0
            if after_step is not None:
                after_step()

    def _rows(self) -> Tensor:
        """The rows of the next batch. The order hangs on the epoch alone, so that the counters are enough."""
        private = torch.Generator().manual_seed(1_000_003 * self.setup.seed + self.state.epoch)
        order = torch.randperm(len(self.inputs), generator=private)
        first = self.state.batch_in_epoch * self.setup.batch
        return order[first : first + self.setup.batch]

    def _update(self, rows: Tensor) -> float:
        noise = torch.from_numpy(np.random.standard_normal((len(rows), self.setup.inputs))).float()
        inputs = self.inputs[rows] * random.uniform(0.9, 1.1) + 0.05 * noise
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), self.targets[rows])
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()


def main(folder: str, setup: str) -> None:
    """Resume, train to the end, and print where it began and the losses from there on."""
    torch.set_num_threads(1)
    training = Training(Setup(**json.loads(setup)))
    training.resume(CheckpointFolder(folder))
    began = training.state.step
    training.train(training.setup.total_steps)
    losses = training.state.losses[began:]
    print(
        json.dumps({"resumed_at": began, "losses": losses, "batch_in_epoch": training.state.batch_in_epoch})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
