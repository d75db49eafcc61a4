"""What data say of themselves in an index: whatever it is made of, it is saved, and the same when it is said again."""

from __future__ import annotations

import datetime
import pathlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from outlast_jobs.generation import FileEntry, GenerationName, decode_index, encode_index
from outlast_worker.batches import batches
from outlast_worker.feed import Feed
from outlast_worker.saving import IndexFields, index_of
from outlast_worker.sharded import load_sharded_checkpoint, save_sharded_checkpoint
from outlast_worker.trainstate import TrainState

COUNTERS = {"step": 1, "epoch": 0, "batch_in_epoch": 0}
SAID: dict[str, Any] = {
    "path": pathlib.Path("data/train"),
    "number of numpy": np.int64(3),
    "truth of numpy": np.bool_(True),
    "tuple": ("a", ("b", 1)),
    "set": {"b", "a"},
    "bytes": b"\xff",
    "date": datetime.date(2026, 1, 2),
    "tensor": torch.ones(2),
    "not finite": [float("nan"), float("inf")],
    "long": 2**80,
    "half a character": "\ud800",
    "keys": {1: "a", (1, 2): "b", None: "c"},
    "plain": {"a": [1, 0.5, None, True, "x"]},
}


class Named(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, identity: Any) -> None:
        self.identity = identity

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


@pytest.mark.parametrize("name", SAID)
def test_whatever_data_say_of_themselves_is_saved_and_the_same_again(name: str) -> None:
    """An index holds it, and what is read there is what the same data say at the next start: nothing has drifted."""

    def said() -> dict[str, Any]:
        return Feed(batches(Named({"of": SAID[name]}), 2)).identity()

    files = {"meta.pt": FileEntry(bytes=1, sha256="0" * 64)}
    index = msgspec.structs.replace(
        index_of(GenerationName(1, 1), COUNTERS, "r", IndexFields(data=said()), None, 0.0), files=files
    )
    assert decode_index(encode_index(index)).data == said()
    if name == "plain":
        assert said()["of"] == SAID[name]


@pytest.mark.parametrize("name", SAID)
def test_a_sharded_checkpoint_is_of_the_data_that_it_was_saved_with(tmp_path: Path, name: str) -> None:
    """Given the same again it is loaded, and given others it is refused."""
    net = torch.nn.Linear(2, 2)
    folder = save_sharded_checkpoint(
        net, None, None, TrainState(step=1), tmp_path / "x", data={"of": SAID[name]}
    )
    assert load_sharded_checkpoint(folder, net, data={"of": SAID[name]}).step == 1
    with pytest.raises(ValueError, match="other data"):
        load_sharded_checkpoint(folder, net, data={"of": "others"})
