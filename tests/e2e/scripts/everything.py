"""All that a large training holds, at once: loaders, accumulation, a scaler, an average, two optimizers, draws."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from outlast_worker import Checkpointer, batches

STEPS = 14


class Noisy(Dataset[Tensor]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), index / 48) + 0.1 * torch.randn(4)


def main() -> None:
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 4))
    scale = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    second = torch.optim.SGD([scale], lr=1e-2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    noise = np.random.default_rng(3)
    data = batches(Noisy(), 4, workers=2, seed=1, start_method="fork")
    ckpt = Checkpointer(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        data=data,
        second=second,
        scaler=scaler,
        ema=ema,
        scale=Holder(scale),
        noise=noise,
    )
    ckpt.extra.setdefault("offset", 0.0)
    with ckpt:
        for parts in ckpt.steps(STEPS, accumulate=2):
            optimizer.zero_grad()
            second.zero_grad()
            total = 0.0
            for x in parts:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(x * random.random() + float(np.random.rand()))
                    loss = ((out * scale - x) ** 2).mean() / 2 + 0.0 * ema(x).mean()
                scaler.scale(loss + float(noise.random()) * scale.sum() + ckpt.extra["offset"]).backward()
                total += float(loss)
            scaler.step(optimizer)
            scaler.step(second)
            scaler.update()
            scheduler.step()
            ema.update_parameters(model)
            ckpt.extra["offset"] += 0.125
            ckpt.step(loss=total)


class Holder:
    """One parameter as a part."""

    def __init__(self, value: nn.Parameter) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value.detach().clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self.value.copy_(state["value"])


if __name__ == "__main__":
    main()
