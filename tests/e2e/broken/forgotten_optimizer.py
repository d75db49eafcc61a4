"""Broken: the optimizer is never registered."""

import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
adam = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, data=data) as ckpt:
    for x in ckpt.steps(STEPS):
        ckpt.step(loss=update(model, adam, x))
