"""The training as a LightningModule, saved by its checkpoint callback; the newest file that loads is resumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

FOLDER, WIDTH, EVERY = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(FOLDER / "pid.new").write_text(str(os.getpid()))
(FOLDER / "pid.new").replace(FOLDER / "pid")

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from model import TOTAL, Progress, batch, make_model, make_optimizer  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """The batch of each step."""

    def __len__(self) -> int:
        return TOTAL

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        return batch(step, WIDTH)


class Module(lightning.LightningModule):
    """The same model and step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model(WIDTH)
        self.progress = Progress(FOLDER)

    def training_step(self, pair: tuple[Tensor, Tensor], _index: int) -> Tensor:
        return mse_loss(self.net(pair[0]), pair[1])

    def on_train_batch_end(self, *_: Any) -> None:
        self.progress.at(self.trainer.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.net)


def newest() -> Path | None:
    """The newest file that is whole; the callback leaves a torn one where it was killed."""
    for path in sorted(FOLDER.glob("*.ckpt"), key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            torch.load(path, mmap=True, weights_only=False)
        except Exception:  # whatever a torn file brings
            path.unlink()
            continue
        return path
    return None


saver = ModelCheckpoint(
    dirpath=FOLDER, filename="{step}", every_n_train_steps=EVERY, save_top_k=2, monitor="step", mode="max"
)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_steps=TOTAL,
    callbacks=[saver],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Module(),
    DataLoader(Batches(), batch_size=None, num_workers=0),
    ckpt_path=newest(),
    **({"weights_only": False} if "weights_only" in trainer.fit.__code__.co_varnames else {}),
)
