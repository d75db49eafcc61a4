"""Broken: a private numpy generator draws the noise and is never registered."""

import numpy as np
import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)
noise = np.random.default_rng(5)
with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
    for x in ckpt.steps(STEPS):
        ckpt.step(loss=update(model, optimizer, x + 0.1 * float(noise.standard_normal())))
