"""A training whose first attempt takes itself and its supervisor away between its last save and its last word."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

from outlast_worker import Checkpointer, batches

STEPS = 5
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ckpt = Checkpointer(model=model, optimizer=optimizer, data=batches(range(64), batch_size=8))
with ckpt:
    for _ in ckpt.steps(total=STEPS):
        optimizer.step()
        ckpt.step(loss=1.0)
    if os.environ["OUTLAST_ATTEMPT"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
print("after the training")
