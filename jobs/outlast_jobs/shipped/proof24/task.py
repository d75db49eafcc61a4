"""What is trained: 24 rows, a network of 33 parameters, and a step that draws from each kind of random stream."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the protocol is one of the CPU; nothing has asked for a device yet

ROWS, BATCH, STEPS, CUT = 24, 4, 10, 5
SEED = 24

_CODE = ("task.py", "flow.py")


@dataclass(frozen=True)
class Done:
    """One update: the rows that it consumed, the rate at which it was made, and its loss."""

    ids: list[int]
    lr: float
    loss: float


class Rows:
    """Hands out the rows in an order drawn anew for each epoch; its state is that order and the cursor in it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.order: list[int] = []
        self.cursor = 0
        self.epoch = -1  # none was begun

    def take(self, number: int, generator: np.random.Generator) -> list[int]:
        """The next rows; at the end of an epoch a new permutation is drawn."""
        if self.cursor == len(self.order):
            self.order = generator.permutation(self.count).tolist()
            self.cursor = 0
            self.epoch += 1
        taken = self.order[self.cursor : self.cursor + number]
        self.cursor += len(taken)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Everything on which the next rows hang, the generator apart."""
        return {"order": list(self.order), "cursor": self.cursor, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses what can't be the state of these rows."""
        order, cursor, epoch = list(state["order"]), state["cursor"], state["epoch"]
        if order and sorted(order) != list(range(self.count)):
            raise ValueError(f"the order is no permutation of {self.count} rows")
        if not 0 <= cursor <= len(order):
            raise ValueError(f"the cursor {cursor} is outside of an order of {len(order)} rows")
        self.order, self.cursor, self.epoch = order, cursor, epoch


class Task:
    """Everything that a run has. It is all made here, and what a resume restores is restored into it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        random.seed(SEED)  # sets a slight gain on the inputs
        np.random.seed(SEED)  # nothing here draws from it; it is held to stay as it is
        torch.manual_seed(SEED)  # draws the first weights and the dropout
        self.noise = np.random.Generator(np.random.PCG64(SEED))  # draws noise and permutations
        self.inputs, self.targets = synthetic_rows()
        self.rows = Rows(ROWS)
        self.model = nn.Sequential(
            nn.Linear(2, 8, dtype=torch.float64),
            nn.Tanh(),
            nn.Dropout(0.25),
            nn.Linear(8, 1, dtype=torch.float64),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        # Made before any state is loaded into the optimizer: making a scheduler sets the rate.
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.5)

    @property
    def lr(self) -> float:
        """The rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def update(self) -> Done:
        """One optimizer update and its scheduler step, over four rows."""
        ids, lr = self.rows.take(BATCH, self.noise), self.lr
        gain = 1.0 + 0.1 * (random.random() - 0.5)
        noise = torch.from_numpy(self.noise.normal(0.0, 0.05, (len(ids), 2)))
        self.model.train()
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(gain * self.inputs[ids] + noise), self.targets[ids])
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return Done(ids, lr, loss.item())

    def evaluate(self) -> tuple[list[float], float]:
        """The outputs for all rows and their mean squared error; nothing is drawn."""
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(self.inputs)
            error = nn.functional.mse_loss(outputs, self.targets)
        return outputs.flatten().tolist(), error.item()

    def data_identity(self) -> dict[str, Any]:
        """What tells these rows from others."""
        content = self.inputs.numpy().tobytes() + self.targets.numpy().tobytes()
        return {"rows": ROWS, "sha256": hashlib.sha256(content).hexdigest()}


def synthetic_rows() -> tuple[Tensor, Tensor]:
    """Two variables and a target that hangs on both, from a generator that nothing else uses."""
    generator = np.random.Generator(np.random.PCG64(2024))
    inputs = generator.uniform(-1.0, 1.0, (ROWS, 2))
    targets = 0.7 * inputs[:, :1] - 0.4 * inputs[:, 1:] + 0.3 * inputs[:, :1] * inputs[:, 1:]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def code_identity() -> dict[str, Any]:
    """What tells this version of the code from others."""
    folder = Path(__file__).parent
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _CODE}
