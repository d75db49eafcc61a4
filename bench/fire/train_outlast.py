"""The training, saved by outlast_worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER, WIDTH = Path(sys.argv[1]), int(sys.argv[2])
(FOLDER / "pid.new").write_text(str(os.getpid()))
(FOLDER / "pid.new").replace(FOLDER / "pid")

from model import TOTAL, Progress, batch, make_model, make_optimizer  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402

from outlast_worker import Checkpointer  # noqa: E402

model = make_model(WIDTH)
optimizer = make_optimizer(model)
progress = Progress(FOLDER)
with Checkpointer(model=model, optimizer=optimizer) as ckpt:
    while ckpt.step_count < TOTAL:
        features, target = batch(ckpt.step_count, WIDTH)
        loss = mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ckpt.step(loss=loss)
        progress.at(ckpt.step_count)
