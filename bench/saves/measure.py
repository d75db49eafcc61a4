"""One contender in a process of its own: trains, saves now and then, and writes down what each save cost, as JSON."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
from contenders import CONTENDERS
from torch import nn


def training(megabytes: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Layers of 1024 by 1024 whose parameters and AdamW moments are so many bytes together."""
    layers: list[nn.Module] = []
    for _ in range(max(1, round(megabytes * 1e6 / (12 * 1024 * 1025)))):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-5)


class Measured:
    """A training with one contender that saves it."""

    def __init__(self, name: str, folder: Path, megabytes: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model, self.optimizer = training(megabytes)
        self.batch = torch.randn(64, 1024)
        self._step()  # the optimizer's state is there from the first step on
        self.contender = CONTENDERS[name](self.model, self.optimizer, folder)

    def _step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def window(self, steps: int) -> float:
        """Seconds of so many steps with their boundaries."""
        boundary = getattr(self.contender, "boundary", lambda: None)
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
            boundary()
        return time.perf_counter() - began

    def saving(self, steps: int, number: int) -> tuple[float, float, float]:
        """Seconds of the call, of the call and the steps after it, and until the save was on disk."""
        ended: list[float] = []
        began = time.perf_counter()
        future = self.contender.save(number)
        stall = time.perf_counter() - began
        future.add_done_callback(lambda _: ended.append(time.perf_counter()))
        whole = stall + self.window(steps)
        future.result()
        return stall, whole, ended[0] - began


def main(name: str, folder: Path, megabytes: int, rounds: int) -> None:
    measured = Measured(name, folder, megabytes)
    size = sum(t.nbytes for t in measured.contender.tensors())
    one = statistics.median(measured.window(1) for _ in range(4))
    _, _, slow = measured.saving(1, 0)
    steps = max(4, int((slow * 1.5 + 0.5) / one))  # so that a save is over before its window is
    for number in range(1, rounds + 1):
        before = measured.window(steps)
        stall, whole, durable = measured.saving(steps, number)
        lost = whole - (before + measured.window(steps)) / 2
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        line = {"stall": stall, "lost": lost, "durable": durable, "bytes": size, "step": one, "peak": peak}
        with (folder / "measured").open("a") as file:
            file.write(json.dumps(line) + "\n")
    measured.contender.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
