"""Single-file checkpoints of every schema load for ever."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from outlast_jobs.errors import Corrupt
from outlast_worker import (
    atomic_save,
    load_checkpoint,
    migrate_v1_to_v2,
)
from outlast_worker.migrate import V1, V2
from outlast_worker.sameness import AnotherIdentity
from outlast_worker.single import read_checkpoint

DATA = Path(__file__).parent / "data"

pytestmark = pytest.mark.usefixtures("own_streams")


def _kept() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.5)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


@pytest.mark.filterwarnings("ignore:.*another environment")
@pytest.mark.parametrize("version", [1, 2])
def test_a_kept_file_loads_for_ever(version: int) -> None:
    """A file of each schema, from disk, restores weights, moments, rate, counters, losses and next draws."""
    expected = json.loads((DATA / "ckpt-expected.json").read_text())
    net, optimizer, scheduler = _kept()
    noise = np.random.default_rng(0)
    more = {"noise": noise} if version == 2 else {}
    state = load_checkpoint(DATA / f"ckpt-v{version}.pt", net, optimizer, scheduler, parts=more)
    assert (state.step, state.epoch, state.batch_in_epoch) == (3, 1, 1)
    assert state.losses == expected["losses"]
    assert net[1].weight.tolist() == expected["weight"]  # type: ignore[index]
    assert optimizer.state_dict()["state"][0]["exp_avg"].tolist() == expected["exp_avg"]
    assert optimizer.param_groups[0]["lr"] == expected["lr"]
    assert scheduler.last_epoch == 3
    draws = {
        "python": [random.random() for _ in range(2)],
        "numpy": np.random.rand(2).tolist(),
        "torch": torch.rand(2).tolist(),
    }
    if version == 2:
        draws["noise"] = noise.random(2).tolist()
        assert state.extra == {"note": "kept"}
    else:
        del expected["draws"]["noise"]
    assert draws == expected["draws"]


def test_v1_migrates_to_v2_and_is_not_touched() -> None:
    """The migration gives the second format with all that the first had, and leaves what it was given."""
    old = torch.load(DATA / "ckpt-v1.pt", weights_only=True)
    keys = set(old)
    new = migrate_v1_to_v2(old)
    assert new["schema"] == V2
    assert set(old) == keys
    assert old["schema"] == V1
    assert new["counters"] == {"step": 3, "epoch": 1, "batch_in_epoch": 1}
    assert [step for step, _ in new["losses"]] == [1, 2, 3]
    assert new["parts"]["model"] is old["model"]
    with pytest.raises(ValueError, match=r"not 'ckpt\.v1'"):
        migrate_v1_to_v2(new)


@pytest.mark.parametrize("missing", ["state", "rng", "optimizer"])
def test_a_v1_file_without_what_it_must_have_is_corrupt(tmp_path: Path, missing: str) -> None:
    """An old file that lacks one of its parts is Corrupt, not a run with that part begun anew."""
    old = torch.load(DATA / "ckpt-v1.pt", weights_only=True)
    del old[missing]
    path = tmp_path / "ckpt.pt"
    atomic_save(old, path)
    with pytest.raises(Corrupt, match=missing):
        read_checkpoint(path, require_digest=False)


def test_an_old_file_cannot_vouch_for_code_or_environment() -> None:
    """What an old file did not record can't be held to be the same: given code, or strict, it is refused."""
    with pytest.raises(AnotherIdentity, match="sha256 not recorded"):
        load_checkpoint(DATA / "ckpt-v1.pt", *_kept(), code={"sha256": "aa"})
    with pytest.raises(AnotherIdentity, match="does not say in which environment"):
        load_checkpoint(DATA / "ckpt-v1.pt", *_kept(), identity="strict")
