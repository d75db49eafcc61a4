"""Broken: an average of the weights is kept and never registered. The training itself does not use it."""

import torch
from common import BATCH, STEPS, make_data, make_model, seed_all, update
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from outlast_worker import Checkpointer, batches

seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = batches(make_data(), BATCH, seed=1)


class Trainer:
    def __init__(self) -> None:
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def train(self) -> None:
        with Checkpointer(model=model, optimizer=optimizer, data=data) as ckpt:
            for x in ckpt.steps(STEPS):
                loss = update(model, optimizer, x)
                self.ema.update_parameters(model)
                ckpt.step(loss=loss)


Trainer().train()
