"""Broken: in the middle of an epoch the sampler draws a new permutation, and skips what was done."""

import torch
from common import SAMPLES, STEPS, Cursor, make_model, seed_all, update

from outlast_worker import Checkpointer


class Shuffled(Cursor):
    def draw_order(self) -> list[int]:
        return torch.randperm(SAMPLES).tolist()

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(99)).tolist()


seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with Checkpointer(model=model, optimizer=optimizer, data=Shuffled()) as ckpt:
    for x in ckpt.steps(STEPS):
        ckpt.step(loss=update(model, optimizer, x))
