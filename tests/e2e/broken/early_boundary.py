"""Broken: the boundary lies between the optimizer's step and the scheduler's."""

import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update, warm_up

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = warm_up(optimizer)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=data) as ckpt:
    for x in ckpt.steps(STEPS):
        loss = update(model, optimizer, x)
        ckpt.step(loss=loss)
        scheduler.step()
