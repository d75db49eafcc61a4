"""A training run as small as can be that holds what real ones hold; made to be killed, and to fail.

A two-layer model with dropout, AdamW, a cosine schedule, a shuffled loader with processes of its own, and
draws from each of the process-wide random streams in every step.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import faults
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from outlast_worker import Checkpointer, batches

FEATURES, HIDDEN, CLASSES = 16, 64, 4


def arguments() -> argparse.Namespace:
    """What can be set, the faults included."""
    parser = argparse.ArgumentParser(description="the smallest training run that holds what real ones hold")
    add = parser.add_argument
    add("--steps", type=int, default=300, help="optimizer updates (%(default)s)")
    add(
        "--step-seconds",
        type=float,
        default=0.05,
        help="wait in each step, as for a large model (%(default)s)",
    )
    add("--batch", type=int, default=8, help="samples a batch (%(default)s)")
    add("--samples", type=int, default=480, help="samples an epoch (%(default)s)")
    add("--accumulate", type=int, default=1, help="batches an update (%(default)s)")
    add("--workers", type=int, default=2, help="loader processes; with 0 the trainer loads (%(default)s)")
    add("--start-method", choices=("fork", "spawn", "forkserver"), help="how loader processes start")
    add("--ballast", type=int, default=0, metavar="BYTES", help="make each save larger by that (%(default)s)")
    add("--eval-every", type=int, default=0, metavar="STEPS", help="steps between evaluations (none)")
    add("--eval-seconds", type=float, default=0.2, help="how long an evaluation takes (%(default)s)")
    add("--ids", action="store_true", help="write the ids of each step's samples into the metrics")
    add("--log-every", type=int, default=50, help="steps between lines (%(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, order and draws (%(default)s)")
    faults.add_switches(parser)
    return parser.parse_args()


class Blobs(Dataset[tuple[Tensor, Tensor]]):
    """Points around as many centres as there are classes, moved a little each time they are looked at."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.classes = torch.randint(CLASSES, (count,), generator=generator)
        centres = torch.randn(CLASSES, FEATURES, generator=generator)
        self.points = centres[self.classes] + torch.randn(count, FEATURES, generator=generator)
        self.identity = {"name": "blobs", "count": count, "seed": seed}

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index] + 0.1 * torch.randn(FEATURES), self.classes[index]


def main() -> None:
    """Everything that lasts is made first; the checkpointer restores it, then the loop runs."""
    args = arguments()
    fault = faults.Faults(args)
    if args.ids:
        os.environ["OUTLAST_RECORD_IDS"] = "1"
    torch.set_num_threads(1)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, CLASSES))
    if args.ballast:
        model.register_buffer("ballast", torch.ones(args.ballast, dtype=torch.uint8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    data = batches(
        Blobs(args.samples, args.seed),
        args.batch,
        workers=args.workers,
        seed=args.seed,
        start_method=args.start_method,
    )

    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    with ckpt:  # restores the checkpoint that the supervisor chose, if there is one
        fault.begin()
        first = ckpt.step_count + 1
        for step, drawn in enumerate(ckpt.steps(total=args.steps, accumulate=args.accumulate), first):
            parts = drawn if args.accumulate > 1 else [drawn]
            fault.strike(step)
            optimizer.zero_grad()
            loss = torch.stack([loss_of(model, *part) for part in parts]).mean()
            if fault.spoils(step):
                loss = loss * float("nan")
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(args.step_seconds)
            if step % args.log_every == 0:
                print(f"step {step} of {args.steps}, loss {loss.item():.4f}", flush=True)
            # The boundary: saves when due or asked, ends when told to. Its count may be checked, as here.
            ckpt.step(loss=loss, step=fault.claimed(step, first))
            if args.eval_every and step % args.eval_every == 0:
                evaluate(ckpt, args.eval_seconds, deaf=fault.deaf)


def loss_of(model: nn.Module, points: Tensor, classes: Tensor) -> Tensor:
    """The loss of one batch, with a draw from numpy's stream and one from python's."""
    moved = points + 0.01 * float(np.random.standard_normal())
    return F.cross_entropy(model(moved), classes, label_smoothing=0.1 * random.random())


def evaluate(ckpt: Checkpointer, seconds: float, *, deaf: bool) -> None:
    """Take that long, as an evaluation would, and answer signals meanwhile unless deaf."""
    end = time.monotonic() + seconds
    with ckpt.phase("eval"):
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            if not deaf:
                ckpt.poll()


if __name__ == "__main__":
    main()
