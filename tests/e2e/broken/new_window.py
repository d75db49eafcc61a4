"""Broken: a boundary after every batch of a window of two, and a window that begins anew in each process."""

import torch
from common import BATCH, STEPS, loss_of, make_data, make_model, seed_all

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    for group in ckpt.steps(STEPS, accumulate=2):
        for place, x in enumerate(group):
            loss = loss_of(model, x) / 2
            loss.backward()
            if place:
                optimizer.step()
                optimizer.zero_grad()
            ckpt.step(loss=loss)
