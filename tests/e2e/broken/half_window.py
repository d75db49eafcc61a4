"""Broken: a boundary after every batch, though only every second one completes an update."""

import torch
from common import BATCH, STEPS, loss_of, make_data, make_model, seed_all

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    for step, x in enumerate(ckpt.steps(STEPS), ckpt.step_count + 1):
        loss = loss_of(model, x) / 2
        loss.backward()
        if step % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        ckpt.step(loss=loss)
