"""Losses and other measured values: read at once on the CPU, one step late where they live on a device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

TAIL = 1000
"""Losses kept in memory and in each generation; all of them are in the run's metrics."""

Value: TypeAlias = float | int | bool | str | None


class Deferred:
    """A value on its way from a device. The copy is queued behind the work that computes it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=tensor.is_cuda)
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Whether the value has arrived."""
        return self._copied is None or bool(self._copied.query())

    def value(self) -> float:
        """The value; waits for its own step only, never for the work queued after it."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._host)


def reading(name: str, value: Any) -> Value | Deferred:
    """What a script passed, as a plain value or as one that is on its way."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(
                f'cannot record "{name}": a tensor of shape {tuple(value.shape)} is no single number; '
                f"pass its mean, or leave it out"
            )
        return float(value.detach()) if value.device.type == "cpu" else Deferred(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if callable(item := getattr(value, "item", None)):  # numpy's scalars
        return reading(name, item())
    raise TypeError(f'cannot record "{name}": {type(value).__name__} is neither a number nor a string')


def loss_reading(value: Any) -> float | Deferred | None:
    """The loss, as a float or as one that is on its way; None where the script gave none."""
    found = reading("loss", value)
    if found is None or isinstance(found, Deferred):
        return found
    return float(found)


def settled(value: Value | Deferred) -> Value:
    """The plain value, waiting for it if need be."""
    return value.value() if isinstance(value, Deferred) else value


def is_ready(value: Value | Deferred) -> bool:
    """Whether `settled` would not wait."""
    return not isinstance(value, Deferred) or value.ready()


class LossHistory:
    """The last `TAIL` losses with their steps, and the first step whose loss was not finite."""

    def __init__(self) -> None:
        self._tail: deque[tuple[int, float]] = deque(maxlen=TAIL)
        self.first_sick: int | None = None
        """First step of this attempt whose loss was not finite."""

    def add(self, step: int, loss: float) -> bool:
        """Record a loss; True where it is the first one that is not finite."""
        self._tail.append((step, loss))
        if math.isfinite(loss) or self.first_sick is not None:
            return False
        self.first_sick = step
        return True

    @property
    def last_finite(self) -> bool:
        """Whether the newest loss is finite; true where there is none."""
        return not self._tail or math.isfinite(self._tail[-1][1])

    def plain(self) -> list[list[Any]]:
        """As a generation stores it."""
        return [[step, loss] for step, loss in self._tail]

    def replace(self, entries: Iterable[Iterable[Any]]) -> None:
        """Take over what a generation stored."""
        self._tail.clear()
        self._tail.extend((int(step), float(loss)) for step, loss in entries)
