"""The training, saved by torch.save: written beside, synced, and renamed, as careful scripts do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER, WIDTH, EVERY = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(FOLDER / "pid.new").write_text(str(os.getpid()))
(FOLDER / "pid.new").replace(FOLDER / "pid")

import torch  # noqa: E402
from model import TOTAL, Progress, batch, make_model, make_optimizer  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

model = make_model(WIDTH)
optimizer = make_optimizer(model)
progress = Progress(FOLDER)
kept = FOLDER / "ckpt.pt"
step = 0
if kept.exists():
    state = torch.load(kept, weights_only=True, mmap=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while step < TOTAL:
    features, target = batch(step, WIDTH)
    loss = mse_loss(model(features), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    progress.at(step)
    if step % EVERY == 0:
        new = FOLDER / "ckpt.new"
        with new.open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(kept)
