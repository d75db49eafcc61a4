"""A script that made another device the default: what lies in the processor's memory is made there all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.listening import Listener, Zygote

TRAIN = """
import os, random, signal
import numpy as np
import torch
from outlast_worker import Checkpointer, batches

torch.set_num_threads(1)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # a default is of one thread: this one has to read
torch.manual_seed(1); random.seed(2); np.random.seed(3)

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 30
    def __getitem__(self, i): return torch.full((160,), float(i), device="cpu") + torch.rand(160, device="cpu")

model = torch.nn.Sequential(torch.nn.Linear(160, 160), torch.nn.Linear(160, 1))  # one of its tensors has 100 KiB
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
torch.set_default_device("meta")  # as "cuda" would be, where nobody has one
data = batches(Rows(), 4, workers=int(os.environ["WORKERS"]), seed=5, start_method="fork")
ckpt = Checkpointer(model=model, optimizer=optimizer, data=data)
with ckpt:
    for batch in ckpt.steps(12):
        loss = model(batch).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        ckpt.step(loss)
        if ckpt.step_count == 8 and os.environ["CUT"] and os.environ["OUTLAST_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Listener]]:
    zygote = Zygote()
    made: list[Listener] = []

    def one(name: str) -> Listener:
        made.append(Listener(tmp_path / name, zygote))
        (made[-1].folder / "train.py").write_text(TRAIN)
        return made[-1]

    yield one
    for listener in made:
        listener.close()
    zygote.close()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_another_default_device_changes_nothing(make: Callable[[str], Listener], workers: str) -> None:
    """Batches, saves beside the training, and a restore are as they are without one, bit for bit."""
    env = {"OUTLAST_SAVE_EVERY_STEPS": "1", "WORKERS": workers}
    whole, cut = make("whole"), make("cut")
    code, output = whole.through(CUT="", **env)
    assert code == 0, output
    code, output = cut.through(CUT="1", **env)
    assert code == -9, output
    assert cut.generations()
    code, output = cut.through(CUT="1", **env)
    assert code == 0, output
    assert "resumed from" in output
    assert cut.history() == whole.history()
    assert cut.index().state_sha256 == whole.index().state_sha256 is not None
