"""Losses on a device: read one step late, in order, and never missing where a save needs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from outlast_worker.ledger import Ledger, Record
from outlast_worker.losses import TAIL, Deferred, LossHistory, loss_reading, reading


class _Slow(Deferred):
    """A value that has not arrived until it is waited for."""

    def __init__(self, value: float) -> None:
        self._value = value
        self.waited = False

    def ready(self) -> bool:
        return False

    def value(self) -> float:
        self.waited = True
        return self._value


def test_a_device_loss_is_read_one_step_late() -> None:
    """A step never waits for its own loss, and waits for that of the step before; lines keep their order."""
    ledger, written = Ledger(LossHistory()), list[dict[str, Any]]()
    ledger.write = written.append
    losses = [_Slow(float(step)) for step in (1, 2, 3)]
    for step, loss in enumerate(losses, start=1):
        ledger.add(Record(step, loss))
        assert [slow.waited for slow in losses] == [place < step for place in (1, 2, 3)]
    ledger.flush()
    assert [(line["step"], line["loss"]) for line in written] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_cpu_loss_is_read_at_once() -> None:
    """Floats and CPU tensors are written with their own step, bit for bit."""
    ledger, written = Ledger(LossHistory()), list[dict[str, Any]]()
    ledger.write = written.append
    loss = torch.tensor(0.1, requires_grad=True)
    ledger.add(Record(1, loss_reading(loss), {"norm": reading("norm", np.float32(0.3))}, [1e-3]))
    assert written == [{"step": 1, "loss": loss.item(), "lr": [1e-3], "norm": float(np.float32(0.3))}]
    assert ledger.last_loss == loss.item()


def test_the_first_loss_that_is_not_finite_is_told_once() -> None:
    """NaN and infinities are sick; health is that of the newest loss."""
    history, told = LossHistory(), list[int]()
    ledger = Ledger(history)
    ledger.on_sick = told.append
    for step, loss in enumerate([1.0, math.nan, math.inf, 2.0], start=1):
        ledger.add(Record(step, loss))
        assert history.last_finite == math.isfinite(loss)
    assert told == [2]


def test_the_tail_of_losses_is_bounded_and_comes_back() -> None:
    """The newest thousand are kept, and what a generation stored is what comes back."""
    history = LossHistory()
    for step in range(TAIL + 5):
        history.add(step, step / 3)
    assert len(history.plain()) == TAIL
    other = LossHistory()
    other.replace(history.plain())
    assert other.plain() == history.plain()


@pytest.mark.parametrize("value", [torch.zeros(2), object(), [1.0]])
def test_what_is_no_number_is_refused_by_name(value: object) -> None:
    """A field that can't be recorded is an error that names it."""
    with pytest.raises((TypeError, ValueError), match='cannot record "accuracy"'):
        reading("accuracy", value)
