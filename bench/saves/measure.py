"""One contender in a process of its own: trains, saves now and then, and writes down what each save cost, as JSON.

What a save costs the training is what its call takes and what the steps after it take longer than steps usually do,
in a time that is long enough for all that the save does beside the training. What is usual is the median of the
steps right before and right after that time: a single slow step moves it little, and a machine that grows slower
moves both.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from contender import Contender, CopyAndHash, Memcpy, Nothing, RawDirect, RawWrite
from ours import Outlast, OutlastBlocking, OutlastCompared
from peers import (
    Distributed,
    DistributedBoth,
    DistributedMeanwhile,
    DistributedProcess,
    FlashCheckpoint,
    LightningAsync,
    TorchSave,
    TorchSaveThread,
)
from torch import nn

CONTENDERS: dict[str, type[Contender]] = {
    "nothing": Nothing,
    "memcpy": Memcpy,
    "memcpy, then sha256": CopyAndHash,
    "raw write": RawWrite,
    "raw direct write": RawDirect,
    "torch.save": TorchSave,
    "torch.save in a thread": TorchSaveThread,
    "DCP async": Distributed,
    "DCP process": DistributedProcess,
    "DCP async, staged meanwhile": DistributedMeanwhile,
    "DCP process, staged meanwhile": DistributedBoth,
    "Lightning async": LightningAsync,
    "DLRover flash checkpoint": FlashCheckpoint,
    "outlast": Outlast,
    "outlast, compared": OutlastCompared,
    "outlast, blocking": OutlastBlocking,
}
USUAL = (6, 1.0)
"""So many steps, and for so many seconds at least, tell what a step usually takes."""

AFTER = (0.3, 0.8)
"""Seconds that are looked at once a save is on disk, and as many more a gigabyte: a supervisor verifies it then."""


def lost(call: float, during: Sequence[float], around: Sequence[float]) -> float:
    """Seconds that a save took from the training, by its call, the steps after it, and those around these."""
    return call + sum(during) - len(during) * statistics.median(around)


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
        self.contender: Contender = Nothing(self.model, self.optimizer, folder)
        self.steps(2)  # the optimizer's state is there from the first step on
        with Memory(self.contender) as memory:
            self.steps(3)
        self.memory_without = memory.most
        # hooks are called in the order in which they came: what lies between these two waited before an update
        self._since = self.waited = 0.0
        self.optimizer.register_step_pre_hook(lambda *_: self._note(begin=True))
        self.contender = CONTENDERS[name](self.model, self.optimizer, folder)
        self.optimizer.register_step_pre_hook(lambda *_: self._note(begin=False))

    def _note(self, *, begin: bool) -> None:
        now = time.perf_counter()
        if begin:
            self._since = now
        else:
            self.waited = now - self._since

    def steps(self, count: int, seconds: float = 0.0) -> list[float]:
        """Seconds of each of so many steps with their boundaries, or of more: for so long at least."""
        times: list[float] = []
        while len(times) < count or sum(times) < seconds:
            began = time.perf_counter()
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.contender.boundary()
            times.append(time.perf_counter() - began)
        return times

    def settle(self, number: int) -> float:
        """A save that is not measured, and trained on until it is on disk: the seconds that took."""
        self.contender.tidy(number)
        began = time.perf_counter()
        future = self.contender.save(number)
        while not future.done():
            self.steps(1)
        future.result()
        return time.perf_counter() - began

    def saving(self, number: int, after: float) -> tuple[dict[str, float], list[float]]:
        """One save: seconds of its call, of its stall, until it was on disk; and of the steps until ``after`` that."""
        ended: list[float] = []
        self.contender.tidy(number)
        began = time.perf_counter()
        future = self.contender.save(number)
        call = time.perf_counter() - began
        future.add_done_callback(lambda _: ended.append(time.perf_counter()))
        if self.contender.leaves:
            return {"call": call, "stall": call, "durable": call, "lost": call}, []
        during = self.steps(1)
        stall = call + self.waited
        while not ended or time.perf_counter() < ended[0] + after:
            during += self.steps(1)
        future.result()
        return {"call": call, "stall": stall, "durable": ended[0] - began}, during


class Memory:
    """The most memory that a contender's processes have, each page once. The looking itself costs: nothing is timed."""

    def __init__(self, contender: Contender) -> None:
        self.most = 0
        self._contender = contender
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.02):
            self.most = max(self.most, sum(_own(pid) for pid in self._contender.processes()))


def _own(pid: int) -> int:
    """Bytes of a process's memory; of what it shares with others its part."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def main(name: str, folder: Path, megabytes: int, rounds: int, with_memory: bool) -> None:
    """Measure, and write a line for each save; one more for the memory."""
    measured = Measured(name, folder, megabytes)
    contender = measured.contender
    for number in range(contender.warm):
        measured.settle(number)
    before = measured.steps(*USUAL)
    after = AFTER[0] + AFTER[1] * megabytes / 1000
    for number in range(contender.warm, contender.warm + rounds):
        line, during = measured.saving(number, after)
        if during:
            behind = measured.steps(*USUAL)
            line["lost"] = lost(line["call"], during, before + behind)
            before = behind
        _write(folder, line)
    if with_memory and not contender.leaves:
        with Memory(contender) as memory:
            measured.settle(contender.warm + rounds)
            measured.steps(3)
        size = sum(t.nbytes for t in contender.tensors())
        _write(folder, {"memory": memory.most - measured.memory_without, "bytes": size})
    if contender.leaves:
        sys.exit(75)
    contender.close()


def _write(folder: Path, line: dict[str, float]) -> None:
    with (folder / "measured").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "memory")
