"""Trains a small classifier; killed at any moment and started again, it goes on where it was."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import Dataset

from outlast_worker import Checkpointer, batches


class Rings(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points in the plane; the class is the ring that a point lies in. Put your own data here."""

    def __init__(self, count: int = 4096) -> None:
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(7))
        self.classes = self.points.norm(dim=1).mul(2).long().clamp(max=3)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.classes[index]


def main() -> None:
    """Everything that lasts is made first; the checkpointer restores it, then the loop runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps: int = parser.parse_args().steps

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    data = batches(Rings(), batch_size=64, workers=0, seed=1)  # workers=2 to load in other processes

    ckpt = Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    step = 0
    with ckpt:  # restores the checkpoint that outlast chose, if there is one
        for step, (points, classes) in enumerate(ckpt.steps(total=steps), ckpt.step_count + 1):
            loss = nn.functional.cross_entropy(model(points), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 100 == 0:
                print(f"step {step} of {steps}, loss {loss.item():.4f}", flush=True)
            ckpt.step(loss=loss)  # the boundary: saves when due or asked, ends when told to


if __name__ == "__main__":
    main()
