"""A copy of a boundary's state that nothing changes any more, and what is looked at before a save."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outlast_worker.snapshot import clone, has_nan
from outlast_worker.space import shortage


def test_a_copy_is_not_touched_by_later_updates() -> None:
    """Everything in the copy is its own: tensors, lists, attributes of a state dict."""
    model = torch.nn.Linear(2, 2)
    tree = {"model": model.state_dict(), "list": [1, {"a": torch.ones(2)}], "tuple": (torch.zeros(1), "x")}
    copied = clone(tree)
    before = [tensor.clone() for tensor in copied["model"].values()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    tree["list"].append(2)
    tree["list"][1]["a"].add_(5)
    assert all(torch.equal(a, b) for a, b in zip(before, copied["model"].values(), strict=True))
    assert len(copied["list"]) == 2
    assert copied["list"][1]["a"].tolist() == [1, 1]
    assert type(copied["model"]) is OrderedDict
    assert copied["model"]._metadata == tree["model"]._metadata


def test_what_shares_memory_shares_it_in_the_copy() -> None:
    """The same memory under two names is copied once, with all views of it; what is of it by value is its own."""
    weight = torch.arange(6.0).reshape(2, 3)
    copied = clone({"a": weight, "b": weight.view(2, 3), "t": weight.t(), "row": weight[0]})
    weight.zero_()
    assert copied["a"].data_ptr() == copied["b"].data_ptr()
    copied["a"][0, 1] = 9
    assert copied["t"].tolist() == [[0, 3], [9, 4], [2, 5]]
    assert copied["row"].tolist() == [0, 9, 2]
    numbers = torch.randn(3, dtype=torch.complex64)
    turned = {"a": numbers, "b": numbers.conj(), "c": numbers.imag, "d": numbers.conj().imag}
    for name, tensor in clone(turned).items():
        assert torch.equal(tensor, turned[name]), name


def test_a_copy_is_what_a_save_would_give_back() -> None:
    """Which tensors are parameters and trained, which lists are one, and tensors that an operation made."""
    tensor = torch.ones(2, requires_grad=True)
    one = [1]
    copied = clone(
        {
            "p": torch.nn.Parameter(tensor.detach()),
            "leaf": tensor,
            "made": deque([tensor * 2], 3),
            "l": (one, one),
        }
    )
    assert type(copied["p"]) is torch.nn.Parameter
    assert copied["leaf"].requires_grad
    assert copied["made"].maxlen == 3
    assert copied["made"][0].tolist() == [2, 2]
    assert copied["l"][0] is copied["l"][1] is not one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_nan_anywhere_is_seen_and_an_infinity_is_legal(dtype: torch.dtype) -> None:
    """Masks are made of infinities; a NaN in weights or momenta is sick."""
    tensor = torch.full((3, 4), float("-inf"), dtype=dtype)
    tree: dict[str, Any] = {
        "a": [{"b": (tensor,)}],
        "n": torch.zeros(0),
        "i": torch.ones(2, dtype=torch.int64),
    }
    assert not has_nan(tree)
    tensor[1, 2] = float("nan")
    assert has_nan(tree)


@pytest.mark.parametrize(
    ("free", "inodes", "all_inodes", "says"),
    [
        (100, 100, 1000, None),
        (99, 100, 1000, "not enough space: the last generation took 100 B"),
        (100, 6, 1000, "not enough space: a generation takes 7 inodes"),
        (100, 0, 0, None),
    ],
)
def test_a_save_that_can_not_fit_is_known_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, inodes: int, all_inodes: int, says: str | None
) -> None:
    """Bytes and inodes are held against the last generation; no inodes at all means none are counted."""
    found = SimpleNamespace(f_bavail=free, f_frsize=1, f_favail=inodes, f_files=all_inodes)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    why = shortage(tmp_path, 100, 3)
    assert (why or "").startswith(says or "")
    assert (why is None) == (says is None)
