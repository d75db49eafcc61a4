"""Optimizers that keep more than tensors for each parameter, and parameters given twice: all of it comes back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast_worker import TrainState, load_checkpoint, save_checkpoint
from outlast_worker.digest import first_difference
from outlast_worker.optimizers import parameter_names
from outlast_worker.parts import Parts
from outlast_worker.ptfile import load_pt, stream
from outlast_worker.typewalk import loadable, original

KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "nested": lambda p: {
        "left": torch.randn(3, 3),
        "more": [torch.randn(2).double(), None, {"n": torch.tensor(3)}],
    },
    "tuple": lambda p: (torch.randn(2), torch.arange(3)),
    "bits": lambda p: torch.ones(4, dtype=torch.uint8),
    "text": lambda p: "adamw",
    "bytes": lambda p: b"abc",
    "size": lambda p: p.shape,
    "set": lambda p: {1, 2},
    "array": lambda p: np.arange(3.0),
    "range": lambda p: range(3),
    "deque": lambda p: collections.deque([torch.randn(2), 2], maxlen=3),
    "ordered": lambda p: collections.OrderedDict(b=torch.randn(1), a=2),
    "default": lambda p: collections.defaultdict(int, a=1),
    "counter": lambda p: collections.Counter("aab"),
}


class Keeping(torch.optim.SGD):
    """Keeps something for each parameter, beside its momentum."""

    def __init__(self, parameters: Any, kept: str) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.kept = kept

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.state:
            self.state[parameter].setdefault("kept", KEPT[self.kept](parameter))


class Apart(torch.optim.Optimizer):
    """A bare tensor for each parameter, and under other keys what is of none."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        state: dict[Any, Any] = self.state
        state["steps"] = state.get("steps", 0) + 1
        state["all"] = {"noise": torch.ones(2)}
        for parameter in (p for group in self.param_groups for p in group["params"]):
            moment = state.setdefault(parameter, torch.zeros_like(parameter))
            moment.mul_(0.9).add_(parameter.grad)
            parameter.data.sub_(moment, alpha=0.1)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.second = torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(3, 3)

    def forward(self, batch: torch.Tensor) -> Any:
        return self.last(self.second(self.first(batch)))


def _given_twice(net: Tied) -> torch.optim.Optimizer:
    twice = [net.first.weight, net.second.weight, *net.last.parameters(), net.first.weight]
    with pytest.warns(UserWarning, match="duplicate"):
        return torch.optim.AdamW([{"params": twice}], lr=0.1)


def _trained(seed: int, make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = Tied().to(dtype)
    parts = {"model": net, "optimizer": make(net)}
    _train(parts, 3)
    return parts


def _train(parts: dict[str, Any], steps: int) -> None:
    for _ in range(steps):
        parts["optimizer"].zero_grad()
        parts["model"](torch.ones(2, 3, dtype=parts["model"].last.weight.dtype)).square().sum().backward()
        parts["optimizer"].step()


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    **{name: lambda net, name=name: Keeping(net.parameters(), name) for name in KEPT},  # type: ignore[misc]
    "apart": lambda net: Apart(net.parameters()),
    "given twice": _given_twice,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKERS)
def test_whatever_an_optimizer_keeps_comes_back(name: str, dtype: torch.dtype) -> None:
    """What is saved of it is restored into one that has trained elsewhere, bit for bit, and both go on alike."""
    parts = _trained(1, MAKERS[name], dtype)
    trees, kinds = Parts(parts).capture()
    saved = original(load_pt(b"".join(stream(loadable(trees)))))
    other = _trained(2, MAKERS[name], dtype)
    Parts(other).restore(saved, kinds)
    _train(parts, 3)
    _train(other, 3)
    assert first_difference(Parts(parts).capture()[0], Parts(other).capture()[0]) is None


def test_a_parameter_given_twice_keeps_the_names_of_the_others_right() -> None:
    """Torch numbers it twice and uses the first: no other is called by its name."""
    net = Tied()
    names = parameter_names(_given_twice(net), {"net": net})
    assert names == [
        "net.first.weight",
        "net.first.weight",
        "net.last.weight",
        "net.last.bias",
        "net.first.weight",
    ]


class Around(torch.optim.Optimizer):
    """Hands all on to the one inside, and was never initialised itself."""

    param_groups = property(lambda self: self.inner.param_groups)
    state = property(lambda self: self.inner.state)

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def test_an_optimizer_around_another_needs_no_defaults_of_its_own(tmp_path: Path) -> None:
    """It comes back as it was saved, by the functions too."""
    net = torch.nn.Linear(2, 2)
    saved = Around(torch.optim.Adam(net.parameters(), lr=0.1))
    save_checkpoint(net, saved, None, TrainState(step=1), tmp_path / "c.pt")
    again = Around(torch.optim.Adam(net.parameters(), lr=0.2))
    load_checkpoint(tmp_path / "c.pt", net, again)
    assert again.param_groups[0]["lr"] == 0.1
