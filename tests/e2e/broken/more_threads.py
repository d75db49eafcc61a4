"""Broken: a resumed process uses another number of threads, and so adds up in another order."""

import os

import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update

from outlast_worker import Checkpointer, batches

torch.set_num_threads(2 if "OUTLAST_RESUME" in os.environ else 1)
seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
field = torch.rand(300_000, generator=torch.Generator().manual_seed(4))
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    for x in ckpt.steps(STEPS):
        scale = (field * x.mean()).exp().sum() / 300_000
        ckpt.step(loss=update(model, optimizer, x * scale))
