"""Broken: the boundary lies between the backward pass and the update."""

import torch
from common import BATCH, STEPS, loss_of, make_data, make_model, seed_all

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    for x in ckpt.steps(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        ckpt.step(loss=loss)
        optimizer.step()
