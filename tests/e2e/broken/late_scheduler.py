"""Broken: the scheduler is built after the optimizer's restore and sets its rate back."""

import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update, warm_up

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    scheduler = warm_up(optimizer)
    for x in ckpt.steps(STEPS):
        loss = update(model, optimizer, x)
        scheduler.step()
        ckpt.step(loss=loss)
