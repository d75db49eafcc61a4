"""Trains a small language model over bytes on the source of Python's own standard library.

Run it under a supervisor (`outlast run bytelm`) or by itself (`python train.py`): it is the same training.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import bigram
import numpy as np
import torch
import torch.nn.functional as F
from corpus import LIMIT, Windows, as_tensor, read_corpus, split_windows
from model import ByteLM
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from outlast_worker import Checkpointer, batches


def arguments() -> argparse.Namespace:
    """What can be set; the defaults take a few minutes on two cores."""
    parser = argparse.ArgumentParser(
        description="train a small byte-level language model on Python's standard library",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=1500, help="optimizer updates")
    add("--layers", type=int, default=2, help="transformer blocks")
    add("--width", type=int, default=128, help="features a position")
    add("--context", type=int, default=128, help="bytes a window")
    add("--batch", type=int, default=4, help="windows a batch; two batches make an update")
    add("--lr", type=float, default=3e-3, help="highest learning rate")
    add("--dropout", type=float, default=0.05, help="share of features dropped in training")
    add("--workers", type=int, default=2, help="loader processes")
    add("--eval-every", type=int, default=250, help="steps between evaluations")
    add("--log-every", type=int, default=50, help="steps between lines")
    add("--limit", type=int, default=LIMIT, help="bytes of text at most")
    add("--sample", type=int, default=400, help="bytes of the sample at the end")
    add("--seed", type=int, default=1, help="seed of weights, order, dropout and sample")
    return parser.parse_args()


def main() -> None:
    """Everything that lasts is made first; the checkpointer restores it, then the loop runs."""
    args = arguments()
    torch.set_num_threads(1)  # threads decide the order of additions, and that the last bit
    random.seed(args.seed)  # not drawn from here; but a run is only the same again with all its streams
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    corpus = read_corpus(limit=args.limit)
    # Every other window tells as much, in half the time.
    inputs, targets = (rows[::2] for rows in split_windows(corpus.held_out, args.context))
    baseline = bigram.bits_per_byte(bigram.fit(as_tensor(corpus.train)), inputs, targets)
    say(f"corpus: {len(corpus.train):,} bytes to train on, {len(corpus.held_out):,} held out")
    say(f"bigram: {baseline:.3f} bits per byte held out")

    model = ByteLM(args.width, args.layers, context=args.context, dropout=args.dropout)
    optimizer = AdamW(parameter_groups(model), lr=args.lr, betas=(0.9, 0.95), fused=True)
    scheduler = warm_up_then_cosine(optimizer, args.steps)
    windows = Windows(corpus, args.context)
    data = batches(windows, args.batch, workers=args.workers, seed=args.seed, drop_last=True)
    pen = torch.Generator().manual_seed(args.seed)  # writes the sample; training never draws from it

    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data, pen=pen)
    with ckpt:  # restores the checkpoint that the supervisor chose, if there is one
        meter = Meter()
        for parts in ckpt.steps(total=args.steps, accumulate=2):
            loss = update(model, optimizer, scheduler, parts)
            meter.add(loss)
            step = ckpt.step_count + 1
            if step % args.log_every == 0:
                say(f"step {step}: {meter.lap()}, rate {optimizer.param_groups[0]['lr']:.1e}")
            if step == args.steps:
                # The last boundary makes the run done: what it leaves behind is made before.
                bits = held_out(ckpt, model, inputs, targets)
                say(f"held out: {bits:.3f} bits per byte, {baseline - bits:.3f} below the bigram")
                write_sample(model, pen, args.sample)
            ckpt.step(loss=loss)  # the boundary: saves when due or asked, ends when told to
            if step % args.eval_every == 0 and step < args.steps:
                bits = held_out(ckpt, model, inputs[::4], targets[::4])
                say(f"step {step}: {bits:.3f} bits per byte held out, on a quarter of it")
                meter = Meter()  # evaluating took time, and trained nothing


def parameter_groups(model: nn.Module) -> list[dict[str, object]]:
    """Matrices decay; embeddings, which are looked up and not multiplied, and gains do not."""
    named = dict(model.named_parameters())
    matrices = [name for name, value in named.items() if value.dim() > 1 and not name.startswith("embed")]
    return [
        {"params": [named[name] for name in matrices], "weight_decay": 0.1},
        {"params": [value for name, value in named.items() if name not in matrices], "weight_decay": 0.0},
    ]


def warm_up_then_cosine(optimizer: AdamW, steps: int) -> SequentialLR:
    """Up to the full rate in 50 steps, then down to a twentieth of it."""
    warm = min(50, max(1, steps // 4))
    lowest = optimizer.param_groups[0]["lr"] / 20
    rise = LinearLR(optimizer, start_factor=1 / warm, total_iters=warm)
    fall = CosineAnnealingLR(optimizer, T_max=max(1, steps - warm), eta_min=lowest)
    return SequentialLR(optimizer, [rise, fall], milestones=[warm])


def update(model: ByteLM, optimizer: AdamW, scheduler: SequentialLR, parts: list[Tensor]) -> float:
    """One optimizer update over all parts of a batch; the loss in bits per byte."""
    optimizer.zero_grad()
    total = 0.0
    for windows in parts:
        text = windows.long()
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()) / len(parts)
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return bigram.ln_to_bits(total)


@torch.no_grad()
def held_out(ckpt: Checkpointer, model: ByteLM, inputs: Tensor, targets: Tensor) -> float:
    """Bits per byte on text that was never trained on; answers signals while it runs."""
    total = 0.0
    with ckpt.phase("eval"):
        model.eval()
        for x, y in zip(inputs.split(8), targets.split(8), strict=True):
            total += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum").item()
            ckpt.poll()
        model.train()
    return bigram.ln_to_bits(total / targets.numel())


def write_sample(model: ByteLM, pen: torch.Generator, length: int) -> None:
    """What the model writes, to the run directory or else the current folder, and for all to see."""
    text = model.sample(b"def ", length, pen).decode("utf-8", errors="replace")
    path = Path(os.environ.get("OUTLAST_RUN", ".")) / "sample.txt"
    path.write_text(text + "\n", encoding="utf-8")
    say(f'a sample, also in "{path}":\n{text}')


class Meter:
    """The mean loss and the milliseconds a step since the last lap."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.since = time.perf_counter()

    def add(self, loss: float) -> None:
        self.losses.append(loss)

    def lap(self) -> str:
        count, now = len(self.losses), time.perf_counter()
        text = (
            f"{sum(self.losses) / count:.3f} bits per byte, {1000 * (now - self.since) / count:.0f} ms a step"
        )
        self.losses, self.since = [], now
        return text


def say(text: str) -> None:
    """One message, at once: the process may be killed at any moment."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
