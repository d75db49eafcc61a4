"""A small training with all that must survive a cut: dropout, AdamW, a schedule, loaders, random draws."""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
import torch
from torch import nn

from outlast_worker import Checkpointer, batches


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum(0, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.005)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", default=None)
    args = parser.parse_args()

    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = batches(
        Numbers(args.samples), batch_size=16, workers=args.workers, seed=1, start_method=args.start_method
    )
    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    with ckpt:
        for x, y in ckpt.steps(total=args.steps):
            optimizer.zero_grad()
            noise = 0.01 * random.random() + 0.01 * np.random.randn()
            loss = ((model(x * (1 + noise)) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(args.step_seconds)
            ckpt.step(loss=loss)
    print("finished")


if __name__ == "__main__":
    main()
