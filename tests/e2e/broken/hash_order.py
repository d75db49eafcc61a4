"""Broken: the order of the samples is that of a set of strings, which hangs on the hash seed."""

import torch
from common import SAMPLES, STEPS, Cursor, loss_of, make_model, seed_all

from outlast_worker import Checkpointer


class FromSet(Cursor):
    def draw_order(self) -> list[int]:
        return [int(name.partition("-")[2]) for name in {f"sample-{n}" for n in range(SAMPLES)}]


seed_all()
model = make_model()
with Checkpointer(model=model, data=FromSet()) as ckpt:
    for x in ckpt.steps(STEPS):
        loss = loss_of(model, x)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():  # by hand: making an optimizer of torch's takes seconds in a cold process
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.01 * gradient
        ckpt.step(loss=loss)
