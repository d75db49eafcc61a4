"""A training whose first attempts kill themselves when a save's copy is known to be right, or just before."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import numpy
import torch

from outlast_worker import Checkpointer, flight, outliving, sources

KILLS = int(sys.argv[1])
WHEN = sys.argv[2]
TOTAL = int(sys.argv[3])
ATTEMPT = int(os.environ["OUTLAST_ATTEMPT"])
if ATTEMPT % 2 or WHEN != "copied":
    sources.REHEARSALS = 0  # in the other attempts the first saves are copied at the boundary, and compared
if WHEN == "unsaid":  # the training never comes to say that the copy is right
    flight.between_operations = lambda call: None


def die(*_: Any) -> None:
    """One millisecond from now, whatever is under way."""
    time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def copied(step: int) -> None:
    note("copied", step)
    threading.Thread(target=die, daemon=True).start()


def written(path: str) -> None:
    flying = ckpt._session is not None and ckpt._session.seals.meanwhile.flight is not None
    if flying and path.endswith("meta.pt"):
        die()


def said(fields: Any) -> None:
    """Die of the word of a save, if it is not the first one."""
    sealed = ckpt._session is not None and ckpt._session.seals.newest is not None
    if sealed and fields.get("X_OUTLAST_PHASE") == "save":
        die()


STRIKES = {
    "copied": (outliving.AUDIT, copied),
    "unsaid": ("outlast.write", written),
    "announced": ("outlast.said", said),
}


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if ATTEMPT <= KILLS and event == STRIKES[WHEN][0]:
        STRIKES[WHEN][1](arguments[0])


def note(*words: object) -> None:
    with open("notes", "a") as file:
        print(json.dumps([ATTEMPT, *words]), file=file)


torch.manual_seed(1)
random.seed(2)
numpy.random.seed(3)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 500))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
ckpt = Checkpointer(model=net, optimizer=optimizer)
buffers = ckpt._session.seals.meanwhile.buffers if ckpt._session is not None else None
sys.addaudithook(watch)
with ckpt:
    while "WAIT_FOR" in os.environ and ATTEMPT <= KILLS and not os.path.exists(os.environ["WAIT_FOR"]):
        time.sleep(0.01)
    if buffers is not None and ckpt.step_count:
        buffers.settled()
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        found = [
            os.stat(link).st_ino for link in links if os.path.exists(link) and "memfd:" in os.readlink(link)
        ]
        note("memory", found)
    while ckpt.step_count < TOTAL:
        loss = net(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ckpt.step(loss)
        if buffers is not None:
            buffers.settled()
        if WHEN == "unsaid" and ATTEMPT <= KILLS and ckpt.step_count >= 4:
            time.sleep(60)  # no update comes, and so no word
