"""Broken: the cursor counts what was fetched ahead, and not what was trained on."""

from collections import deque
from collections.abc import Iterator

import torch
from common import STEPS, Cursor, make_model, seed_all, update

from outlast_worker import Checkpointer

AHEAD = 2


class Prefetching(Cursor):
    def __iter__(self) -> Iterator[torch.Tensor]:
        source = super().__iter__()
        waiting: deque = deque()
        while True:
            while len(waiting) <= AHEAD and (x := next(source, None)) is not None:
                waiting.append((x, self.last_ids))
            if not waiting:
                return
            x, ids = waiting.popleft()
            self.last_ids = ids
            yield x


seed_all()
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with Checkpointer(model=model, optimizer=optimizer, data=Prefetching()) as ckpt:
    for x in ckpt.steps(STEPS):
        ckpt.step(loss=update(model, optimizer, x))
