"""What a script holds with a state, and never registered."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from outlast_worker.strays import find

model = nn.Linear(2, 2)


class Trainer:
    """A script's own class, which is looked into."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def drawing(hidden: torch.Generator) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(1, generator=hidden)


def names(**registered: Any) -> set[str]:
    """What is found from the frame of the caller, but for this module's globals."""
    return {stray.name for stray in find(registered, [model]) if stray.name != "model"}


def test_what_is_registered_is_no_stray() -> None:
    """Parts, their modules, and wrappers around them are none of it."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    first, criterion, wrapped = net[0], nn.MSELoss(), nn.Sequential(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert names(net=net, optimizer=optimizer) == set()
    assert first is not None
    assert criterion is not None
    assert wrapped is not None


def test_what_is_not_registered_is_found_by_its_variable() -> None:
    """Optimizers, schedulers, averages, generators and whatever has a state dict, by the name they have."""
    net = nn.Linear(2, 2)
    adam = torch.optim.Adam(net.parameters())
    plan = torch.optim.lr_scheduler.StepLR(adam, 1)
    ema = torch.optim.swa_utils.AveragedModel(net)
    noise, dice, pen = np.random.default_rng(1), random.Random(1), torch.Generator()
    scaler = torch.amp.GradScaler("cpu")
    average = {name: value.detach().clone() for name, value in net.named_parameters()}
    batch, entropy = {"x": torch.ones(2)}, random.SystemRandom()
    found = names(net=net)
    assert found == {"adam", "plan", "ema", "noise", "dice", "pen", "scaler", "average"}
    assert None not in (plan, ema, noise, dice, pen, scaler, average, batch, entropy)


def test_a_copy_of_the_best_model_is_found_with_its_buffers() -> None:
    """A state dict that is kept aside has the running averages of batch norm too, and is none the less a copy."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    best = {name: value.clone() for name, value in net.state_dict().items()}
    assert names(net=net) == {"best"}
    assert best


def test_objects_of_the_script_and_closures_are_looked_into() -> None:
    """What an object of the script holds, or a list, or a function's closure, is within reach."""
    trainer = Trainer(parts=[np.random.default_rng(1)], inner=Trainer(ema=nn.Linear(1, 1)))
    holder = {"draw": drawing(torch.Generator())}
    found = names()
    assert {"trainer.parts[0]", "trainer.inner.ema", "hidden"} <= found
    assert holder
    assert trainer
