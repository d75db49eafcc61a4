"""Broken: the loader's iterator is made after the restore, and draws its base seed from torch's stream."""

import itertools

import torch
from common import STEPS, make_data, make_model, seed_all, update, warm_up
from torch.utils.data import DataLoader

from outlast_worker import Checkpointer

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = warm_up(optimizer)
loader = DataLoader(make_data(), batch_size=2)
with Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler) as ckpt:
    for x in itertools.islice(loader, ckpt.step_count, STEPS):
        loss = update(model, optimizer, x)
        scheduler.step()
        ckpt.step(loss=loss)
