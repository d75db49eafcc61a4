"""Steps whose numbers are still on their way from a device, in order, until they can be written down."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from outlast_worker.losses import Deferred, LossHistory, Value, is_ready, settled


class Record:
    """One step: its loss, the script's own fields, and what else belongs in its line."""

    __slots__ = ("fields", "loss", "rates", "rest", "step")

    def __init__(
        self,
        step: int,
        loss: float | Deferred | None,
        fields: dict[str, Value | Deferred] | None = None,
        rates: list[Value | Deferred] | None = None,
    ) -> None:
        self.step = step
        self.loss = loss
        self.fields = fields or {}
        self.rates = rates or []
        self.rest: dict[str, Any] = {}

    @property
    def ready(self) -> bool:
        return all(map(is_ready, (self.loss, *self.fields.values(), *self.rates)))


class Ledger:
    """Writes records in the order of their steps, each one step late at most."""

    def __init__(self, losses: LossHistory) -> None:
        self.write: Callable[[dict[str, Any]], None] | None = None
        self.on_sick: Callable[[int], None] | None = None
        self.last_loss: float | None = None
        """Newest loss that has arrived."""
        self._losses = losses
        self._waiting: deque[Record] = deque()

    def add(self, record: Record) -> None:
        """Take in a step; whatever has arrived is written, and all but the newest is waited for."""
        self._waiting.append(record)
        while self._waiting and (len(self._waiting) > 1 or self._waiting[0].ready):
            self._settle(self._waiting.popleft())

    def flush(self) -> None:
        """Wait for all: before a save, whose loss history must reach to its step."""
        while self._waiting:
            self._settle(self._waiting.popleft())

    def _settle(self, record: Record) -> None:
        loss = record.loss.value() if isinstance(record.loss, Deferred) else record.loss
        fields = {key: settled(value) for key, value in record.fields.items()}
        if self.write is not None:
            rates = [settled(rate) for rate in record.rates]
            self.write({"step": record.step, "loss": loss, "lr": rates, **record.rest, **fields})
        if loss is None:
            return
        self.last_loss = loss
        if self._losses.add(record.step, loss) and self.on_sick is not None:
            self.on_sick(record.step)
