"""A script without a Checkpointer: it saves and loads a file, as the recipe says, and counts by itself."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from outlast_worker import TrainState, load_checkpoint, save_checkpoint

STEPS, BATCHES, BATCH, EVERY = 12, 5, 4, 2


def main() -> None:
    forgets = "--forget-noise" in sys.argv
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    noise = np.random.default_rng(1)
    inputs = torch.randn(BATCHES * BATCH, 4)
    parts = {} if forgets else {"noise": noise}
    path = Path(os.environ.get("OUTLAST_RUN", ".")) / "checkpoint.pt"
    state = TrainState()
    if path.exists():
        state = load_checkpoint(path, model, optimizer, scheduler, parts=parts)
    while state.step < STEPS:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(state.epoch))
        x = inputs[order[state.batch_in_epoch * BATCH :][:BATCH]]
        loss = model(x + 0.1 * float(noise.standard_normal()) + random.random()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        state.step += 1
        state.losses.append(loss.item())
        state.epoch, state.batch_in_epoch = divmod(state.step, BATCHES)
        if state.step % EVERY == 0:
            save_checkpoint(model, optimizer, scheduler, state, path, parts=parts)


if __name__ == "__main__":
    main()
