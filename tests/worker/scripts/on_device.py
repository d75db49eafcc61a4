"""A training on ON (cuda or cpu) with much to do between boundaries; what each state was is kept on the device."""

from __future__ import annotations

import os
from typing import Any

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it CUDA's products differ from run to run

import random
import signal

import numpy as np
import torch

from outlast_worker import Checkpointer, imaging, meanwhile, sources
from outlast_worker.digest import state_sha256
from outlast_worker.snapshot import clone

ON = torch.device(os.environ["ON"])
TOTAL = int(os.environ.get("TOTAL", "16"))
WIDTH = int(os.environ.get("WIDTH", "32"))
ASIDE = "ASIDE" in os.environ  # the updates on a stream of their own
sources.REHEARSALS = int(os.environ.get("REHEARSALS", "0"))
how: list[str] = []
_into = imaging.into


def into(buffer: Any, planned: Any, mode: Any, movable: Any, transfers: Any) -> Any:
    found = _into(buffer, planned, mode, movable, transfers)
    there = found.transfers.open + found.transfers.compared
    how.append(
        f"{mode}:host{len(found.meanwhile) + len(found.rehearsed)}:device{there}:pinned{buffer.pinned}"
    )
    return found


meanwhile.into = into
torch.use_deterministic_algorithms(True)
torch.manual_seed(1)
torch.set_num_threads(1)
random.seed(1)
np.random.seed(1)
net = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, 8 * WIDTH),
    torch.nn.BatchNorm1d(8 * WIDTH),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(8 * WIDTH, WIDTH),
).to(ON)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
ckpt = Checkpointer(model=net, optimizer=optimizer, scheduler=scheduler)
aside = torch.cuda.Stream() if ASIDE and ON.type == "cuda" else None


def here(tree: Any) -> Any:
    """A copy that is queued like any other work, and waits for nothing."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        copied = {key: here(value) for key, value in tree.items()}
        return type(tree)(copied) if type(tree) is not dict else copied
    return type(tree)(map(here, tree)) if isinstance(tree, list | tuple) else tree


def update() -> torch.Tensor:
    loss = torch.zeros((), device=ON)
    for _ in range(4):
        batch = torch.randn(64, WIDTH, device=ON)
        loss = loss + (net(batch) - batch.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if aside is None:
        optimizer.step()
    else:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            optimizer.step()
        torch.cuda.current_stream().wait_stream(aside)
    scheduler.step()
    return loss


states: dict[int, Any] = {}
try:
    with ckpt:
        while ckpt.step_count < TOTAL:
            loss = update()
            if os.environ.get("STOP") == str(ckpt.step_count + 1):
                os.kill(os.getpid(), signal.SIGTERM)
            step = ckpt.step_count + 1
            try:
                ckpt.step(loss)
            finally:
                states[step] = here(ckpt._state.capture())
            if ckpt._session is not None:
                ckpt._session.seals.meanwhile.buffers.settled()
finally:
    with open("states", "a") as out:
        for step, state in states.items():
            print(step, state_sha256(clone(state)), file=out)
    print("how", *how, flush=True)
