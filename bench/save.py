"""Measure a save against memcpy and a raw write of the same bytes, in turn; decides nothing.

    python bench/save.py [--mb 300 1200] [--rounds 7] [--folder DIR]

A model with AdamW's state trains in this process. In turn: its bytes are copied into memory that is there already;
written and synced raw, through the page cache and past it; saved by torch.save with a sync; saved by a Checkpointer
while the training goes on; and trained through without a save. Stall is what the boundary and the next update wait.
Lost is what a stretch of steps takes longer with a save in it. Every figure is a median with its range.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from restore import MB, model

from outlast_jobs.blocks import BLOCK, Image
from outlast_jobs.claim import claim
from outlast_jobs.durable import write_file
from outlast_jobs.rundir import RunDirectory
from outlast_worker import Checkpointer, sources

ROW = "{:<44} {:>9.1f} ms {:>20} {:>8}"


class Raw(Image):
    """Bytes as they lie in memory, the same block again and again."""

    def __init__(self, size: int, block: memoryview) -> None:
        self._size = size
        self._block = block

    @property
    def size(self) -> int:
        return self._size

    def block(self, start: int, scratch: memoryview) -> memoryview:
        return self._block[: scratch.nbytes]


class Unhashed:
    """A digest of nothing: a raw write has none."""

    def update(self, data: memoryview, /) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


class Training:
    """A training whose steps and saves can be timed."""

    def __init__(self, folder: Path, mb: int) -> None:
        run = RunDirectory(folder / f"run-{mb}")
        os.environ.update(
            OUTLAST_RUN=str(run.path),
            OUTLAST_RUN_ID=run.create().run.run_id,
            OUTLAST_ATTEMPT="1",
            OUTLAST_CHECKPOINTS=str(run.checkpoints),
        )
        claim(run.checkpoints, 1)
        self.checkpoints = run.checkpoints
        self.net = model(mb)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-5)
        self.optimizer.register_step_pre_hook(self.before_hooks)
        self.ckpt = Checkpointer(model=self.net, optimizer=self.optimizer)
        self.data = torch.randn(64, 1024)
        self.sealed_at = 0.0
        self.stalled = 0.0
        self.hooked_at = 0.0

    def before_hooks(self, *_: Any) -> None:
        self.hooked_at = time.perf_counter()

    def begin(self) -> None:
        session: Any = self.ckpt._session
        self.seals = session.seals
        sealed = self.seals._sealed

        def told(*args: Any) -> None:
            self.sealed_at = time.perf_counter()
            sealed(*args)

        def after_hooks(*_: Any) -> None:
            self.stalled += time.perf_counter() - self.hooked_at

        self.seals._sealed = told
        self.optimizer.register_step_pre_hook(after_hooks)
        self.step()
        for _ in range(sources.REHEARSALS + 2):  # the first is loaded back, and some are compared
            self.save()
        self.seals.meanwhile.buffers.settled()

    def step(self) -> float:
        """One update; how long its boundary took."""
        found = self.data
        for layer in self.net:
            found = torch.nn.functional.layer_norm(layer(found[:, :1024]), layer.weight.shape[:1])
        self.optimizer.zero_grad()
        found.square().mean().backward()
        self.optimizer.step()
        began = time.perf_counter()
        self.ckpt.step()
        return time.perf_counter() - began

    def steps(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.step()
        return time.perf_counter() - began

    def save(self, count: int = 0) -> tuple[float, float, float]:
        """Steps with a save after the first: stall, all the time, and until it was sealed."""
        self.stalled, self.sealed_at = 0.0, 0.0
        began = time.perf_counter()
        os.kill(os.getpid(), signal.SIGUSR1)
        boundary = self.step()
        noted = time.perf_counter() - boundary
        done = 1
        while done < count or self.seals.meanwhile.flight is not None:
            self.step()
            done += 1
        whole = (time.perf_counter() - began) / done * max(count, 1)
        return boundary + self.stalled, whole, self.sealed_at - noted


def compare(folder: Path, mb: int, rounds: int) -> None:
    """All ways in turn, and the ratios that matter."""
    training = Training(folder, mb)
    with training.ckpt:
        training.begin()
        tensors = [t for s in training.optimizer.state.values() for t in s.values()]
        tensors += list(training.net.parameters())
        copies = [torch.empty_like(t).copy_(t) for t in tensors]
        size = sum(t.nbytes for t in tensors)
        block = memoryview(bytearray(os.urandom(BLOCK)))
        one = training.steps(3) / 3
        count = max(8, int(3 * size / 1e9 / one))

        def copy() -> None:
            for to, source in zip(copies, tensors, strict=True):
                to.copy_(source.detach())

        def plain() -> None:
            state = {"model": training.net.state_dict(), "optimizer": training.optimizer.state_dict()}
            with open(folder / "plain.pt", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

        def raw(direct: bool) -> None:
            path = folder / "raw"
            path.unlink(missing_ok=True)
            if direct:
                write_file(path, Raw(size, block), hasher=Unhashed())
            else:
                pieces = (block[: min(BLOCK, size - at)] for at in range(0, size, BLOCK))
                write_file(path, pieces, hasher=Unhashed())

        times: dict[str, list[float]] = {}

        def timed(name: str, what: Callable[[], object]) -> None:
            began = time.perf_counter()
            what()
            times.setdefault(name, []).append(time.perf_counter() - began)

        for _ in range(rounds):
            timed("memcpy", copy)
            timed("raw write and fsync, buffered", lambda: raw(False))
            timed("raw write and fsync, direct", lambda: raw(True))
            timed("torch.save and fsync", plain)
            without = training.steps(count)
            stall, with_save, durable = training.save(count)
            times.setdefault("stall of a save", []).append(stall)
            times.setdefault("training time lost a save", []).append(with_save - without)
            times.setdefault("until it is durable, with sha256", []).append(durable)
        _show(mb, size, times)
        training.steps(1)


def _show(mb: int, size: int, times: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(found) for name, found in times.items()}
    disk = min(middle["raw write and fsync, buffered"], middle["raw write and fsync, direct"])
    limits = {"stall of a save": middle["memcpy"], "training time lost a save": middle["memcpy"]}
    limits["until it is durable, with sha256"] = disk
    print(f"\n{size / MB:.0f} MB of model and optimizer")
    for name, found in times.items():
        spread = f"{min(found) * 1000:.1f} to {max(found) * 1000:.1f}"
        ratio = f"{middle[name] / limits[name]:.2f}" if name in limits else ""
        print(ROW.format(name, middle[name] * 1000, spread, ratio), flush=True)


def main() -> None:
    """Each size after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mb", type=int, nargs="+", default=[300])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    for mb in args.mb:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="outlast-save-") as name:
            compare(Path(name), mb, args.rounds)


if __name__ == "__main__":
    main()
