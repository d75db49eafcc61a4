"""The pickler for states without their tensors: what it writes is what torch writes, by far fewer calls."""

from __future__ import annotations

import collections
import io
import pickle
import pickletools
import zipfile
from typing import Any

import pytest
import torch

from outlast_worker import metapickle
from outlast_worker.digest import first_difference
from outlast_worker.ptfile import load_pt
from outlast_worker.rng import capture_rng_state


def state(tensors: int = 300) -> dict[str, Any]:
    """A state as `meta.pt` has it, with references where tensors were."""
    names = [f"layer.{number}" for number in range(tensors)]
    references = [{"$": "tensor", "n": n, "shard": 0, "key": name} for n, name in enumerate(names)]
    model = collections.OrderedDict(zip(names, references, strict=True))
    model._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    device = torch.arange(16, dtype=torch.uint8)
    return {
        "parts": {"model": model, "optimizer": {"state": {0: references[0]}, "rate": 1e-3}},
        "rng": capture_rng_state() | {"cuda": [device, device[8:], device]},
        "extra": {"sizes": torch.Size([1, 2]), "kind": torch.float16, "own": None, "names": names},
        "shards": ["model.shard-000.pt"],
    }


def written(content: Any, by: Any = metapickle) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, pickle_module=by)
    return out.getvalue()


def test_what_is_written_loads_as_what_torch_writes() -> None:
    """The safe loader reads the same state from it, attributes, shared references and shared memory included."""
    saved = state()
    ours, theirs = load_pt(written(saved)), load_pt(written(saved, pickle))
    assert first_difference(theirs, ours) is None
    assert first_difference(saved, ours) is None
    assert ours["parts"]["model"]._metadata == {"": {"version": 1}}
    assert ours["parts"]["optimizer"]["state"][0] is ours["parts"]["model"]["layer.0"]
    first, view, again = ours["rng"]["cuda"]
    assert first.data_ptr() == again.data_ptr() == view.data_ptr() - 8
    assert ours["extra"]["names"][0] is next(iter(ours["parts"]["model"]))


def test_it_is_one_pickle_that_defines_nothing_twice() -> None:
    """Python's own disassembler, which checks the stack and the numbers of what is kept, finds no fault."""
    pickled = zipfile.ZipFile(io.BytesIO(written(state()))).read("archive/data.pkl")
    pickletools.dis(pickled, io.StringIO())


class _Counting(metapickle.Pickler):
    """As torch makes it, and counts."""

    asked = 0

    def persistent_id(self, obj: Any) -> Any:
        self.asked += 1
        if isinstance(obj, torch.UntypedStorage | torch.TypedStorage):
            return ("storage", torch.ByteStorage, "0", "cpu", 1)
        return None


def test_what_holds_no_tensor_is_not_asked_about() -> None:
    """However many references and numbers there are, Python is called for the few tensors alone."""
    counts = []
    for tensors in (10, 1000):
        pickler = _Counting(io.BytesIO(), 2)
        pickler.dump(state(tensors))
        counts.append(pickler.asked)
    assert counts[0] == counts[1] < 150


@pytest.mark.parametrize(
    "content",
    [
        state() | {"extra": {"deep": [{"own": torch.ones(3)}]}},
        state() | {"extra": (torch.ones(3),)},
        [torch.ones(3), 1],
        torch.nn.Parameter(torch.ones(3)),
        {},
    ],
    ids=["deep", "tuple", "list", "parameter", "empty"],
)
def test_a_tensor_in_any_other_place_is_written_as_ever(content: Any) -> None:
    """What is not made as a state of ours loads all the same."""
    ours, theirs = load_pt(written(content)), load_pt(written(content, pickle))
    assert first_difference({"": theirs}, {"": ours}) is None
    assert type(ours) is type(theirs)
