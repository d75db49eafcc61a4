"""A state that is planned along the one before gives the same plan as one that is planned anew."""

from __future__ import annotations

import collections
import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from outlast_worker import again
from outlast_worker.again import Again
from outlast_worker.imaging import Plan, plan
from outlast_worker.saving import take_state
from outlast_worker.typewalk import NotLoadable


class Training:
    """A model with tied weights and buffers, an optimizer, and odd things."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)
        )
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.base = torch.randn(5, 8)
        self.more: dict[str, Any] = {"row": self.base[1], "columns": [self.base[:, 2], 3.5]}
        self.more |= {"one": torch.ones(3), "another": torch.ones(3), "two": [torch.ones(4)] * 2}
        self.extra: dict[str, Any] = {"note": "a", "numbers": [1, 2.5, None], "shared": [1]}
        self.losses: list[float] = []
        self.step()

    def step(self) -> None:
        self.model(torch.randn(4, 6)).square().mean().backward()
        self.optimizer.step()
        self.losses.append(0.5 * len(self.losses))

    def state(self) -> dict[str, Any]:
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "more": self.more,
        }
        rng = {"torch": torch.get_rng_state(), "numpy": np.random.RandomState(1).get_state(legacy=False)}
        counters = {"step": len(self.losses), "epoch": 0, "batch_in_epoch": 1}
        kinds = dict.fromkeys(parts, "stateful")
        rest = {"kinds": kinds, "losses": list(self.losses), "rng": rng, "extra": self.extra}
        return {"schema": "outlast.meta/1", "parts": parts, "counters": counters, **rest}


def told(planned: Plan, state: Any) -> Any:
    """All of a plan that can be compared."""
    there = set(_addresses(state))
    shards = [
        [
            (
                component.size,
                component.copied,
                component.storage(),
                [(m.key, m.reference, m.bucket, there & {m.tensor.data_ptr()}) for m in component.members],
                {key: tensor.tolist() for key, tensor in component.content().items()},
            )
            for component in shard
        ]
        for shard in planned.taken.shards
    ]
    return repr(planned.taken.skeleton), shards, planned.starts, planned.layouts


def _addresses(tree: Any) -> Iterator[int]:
    """Of the tensors of a state; what an array or a negated tensor is made into lies elsewhere each time."""
    if isinstance(tree, torch.Tensor):
        yield tree.data_ptr()
    elif isinstance(tree, dict | list | tuple | collections.deque):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _addresses(item)


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each state that was planned along the one before."""
    done: list[int] = []
    cast = again._cast

    def counting(*arguments: Any) -> Plan:
        planned = cast(*arguments)
        done.append(1)
        return planned

    monkeypatch.setattr(again, "_cast", counting)
    return done


def test_the_plan_is_the_one_that_is_made_anew(casts: list[int]) -> None:
    """Save after save of a training, with tied weights, views of one memory, buffers, and numbers that change."""
    training, planner = Training(), Again()
    for _ in range(4):
        state = training.state()
        assert told(planner.plan(state), state) == told(plan(take_state(state)), state)
        training.step()
        training.extra = {"note": "b", "numbers": [2, float("inf")], "shared": [1, 2]}
    assert len(casts) == 3


CHANGES: dict[str, Callable[[Training], object]] = {
    "a new tensor": lambda t: t.more.update(fresh=torch.zeros(3)),
    "one less": lambda t: t.more.pop("row"),
    "another order": lambda t: t.more.update(row=t.more.pop("row")),
    "elsewhere": lambda t: t.more.update(row=t.more["row"].clone()),
    "two that are one now": lambda t: t.more.update(another=t.more["one"]),
    "one that is two now": lambda t: t.more.update(two=[torch.ones(4), torch.ones(4)]),
    "another row": lambda t: t.more.update(row=t.base[2]),
    "another shape": lambda t: t.more.update(row=t.base[1].view(2, 4)),
    "turned": lambda t: t.more.update(row=t.base[1].as_strided((4,), (2,), 8)),
    "another type": lambda t: t.more.update(row=t.base.view(torch.int32)[1]),
    "a parameter": lambda t: t.more.update(row=torch.nn.Parameter(t.base[1])),
    "with a gradient": lambda t: t.more.update(row=t.base[1].detach().requires_grad_()),
    "a number for a tensor": lambda t: t.more.update(row=1.0),
    "a tensor for a number": lambda t: t.more["columns"].__setitem__(1, torch.ones(2)),
    "a tensor deep in what held none": lambda t: t.extra.update(numbers=[{"a": (1, torch.ones(2))}]),
    "an array": lambda t: t.extra.update(numbers=np.arange(3)),
    "a longer list": lambda t: t.more["columns"].append(t.base[0]),
    "a tuple for a list": lambda t: t.more.update(columns=tuple(t.more["columns"])),
    "the same list twice": lambda t: t.more.update(again=t.more["columns"]),
    "a deque of tensors": lambda t: t.more.update(columns=collections.deque([t.base[0]])),
    "an ordered dict": lambda t: setattr(t, "more", collections.OrderedDict(t.more)),
    "the imaginary part": lambda t: t.more.update(row=torch.randn(8, dtype=torch.cfloat).conj().imag),
    "other weights": lambda t: t.model.__setitem__(1, torch.nn.LayerNorm(6)),
    "a group of parameters": lambda t: t.optimizer.add_param_group(
        {"params": [torch.ones(2, requires_grad=True)]}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_of_what_is_saved_and_where_it_lies_is_seen(change: Callable[[Training], object]) -> None:
    """The plan that follows is the one that is made anew, and so is the one after it."""
    training, planner = Training(), Again()
    for _ in range(2):
        planner.plan(training.state())
    change(training)
    for _ in range(2):
        state = training.state()
        assert told(planner.plan(state), state) == told(plan(take_state(state)), state)


def test_lists_that_are_one_stay_one(casts: list[int]) -> None:
    """In what holds no tensors, along the one before as anew; and what no longer is one is no longer one."""
    training, planner = Training(), Again()
    shared = [1, 2]
    training.extra = {"one": shared, "two": shared}
    for _ in range(2):
        skeleton = planner.plan(training.state()).taken.skeleton["extra"]
        assert skeleton["one"] is skeleton["two"]
    training.extra = copy.deepcopy({"one": [1, 2], "two": [1, 2]})
    skeleton = planner.plan(training.state()).taken.skeleton["extra"]
    assert skeleton["one"] is not skeleton["two"]
    assert len(casts) == 2


def test_what_would_not_load_is_refused_with_its_place() -> None:
    """As in a first save, though all was well in the one before."""
    training, planner = Training(), Again()
    planner.plan(training.state())
    training.extra["numbers"] = [1, {"deep": object()}]
    with pytest.raises(NotLoadable, match="extra/numbers/1/deep"):
        planner.plan(training.state())


def test_no_tensor_is_kept_alive() -> None:
    """What is kept of a plan for the next one holds none of its tensors."""
    training, planner = Training(), Again()
    for _ in range(2):
        planner.plan(training.state())
    gone = weakref.ref(training.base)
    held = training.base.untyped_storage()
    alive = weakref.ref(held)
    del held
    training.more.clear()
    training.base = torch.empty(0)
    gc.collect()
    assert gone() is None
    assert alive() is None
