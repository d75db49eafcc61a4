"""Drawing batches from the data for as many steps as it takes, across epochs; counting what was consumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from outlast_worker.batches import Batches
from outlast_worker.output import say
from outlast_worker.recorded import recorded

UNCOUNTED = 200
"""So many batches, or lists of them, without a boundary are more than one update is made of."""
_LIKE = 8
"""So many steps that draw alike, after a first one that drew more, show that the script draws ahead."""


class Feed:
    """The data of one run. Counters move at boundaries: a batch that was drawn is not consumed before."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.epoch = 0
        self.batch_in_epoch = 0
        self.drawn = 0
        """Batches handed out since the last boundary; with any, the state in memory may be half a step's."""
        self._next_epoch = 0
        self._next_batch = 0
        self._ids: list[int] = []
        self._iterator: Iterator[Any] | None = None
        self._told_uncounted = False
        self._first = True  # the next boundary is this process's first
        self._draws: list[int] = []  # batches of the first steps of this process

    def start(self) -> None:
        """Make the iterator now, so that whatever it draws from the process-wide streams is drawn here."""
        if self.data is None:
            raise RuntimeError("cannot hand out batches: the Checkpointer has no data; pass it as data=…")
        self._next_epoch, self._next_batch = self.epoch, self.batch_in_epoch
        self.drawn = 0
        self._ids.clear()
        self._iterator = iter(self.data)

    def hand_out(self, accumulate: int) -> Any:
        """The next batch, or a list of so many. Says once if very many went out without a boundary."""
        drawn = self.draw() if accumulate == 1 else [self.draw() for _ in range(accumulate)]
        if self.drawn >= UNCOUNTED * accumulate and not self._told_uncounted:
            self._told_uncounted = True
            say(
                f"{self.drawn} batches were handed out since the last boundary; without one no step is counted "
                "and nothing is saved: call ckpt.step() after each update"
            )
        return drawn

    def draw(self) -> Any:
        """The next batch, from the next epoch where this one is exhausted."""
        if self._iterator is None:
            self.start()
        for iterator in (self._iterator, None):
            if iterator is None:
                self._next_epoch, self._next_batch = self._next_epoch + 1, 0
                self._iterator = iterator = iter(self.data)
            try:
                batch = next(iterator)
            except StopIteration:
                continue
            self._count()
            return batch
        raise RuntimeError(
            "cannot draw a batch: a whole epoch of the data has none; is the dataset smaller than one batch, "
            "with drop_last?"
        )

    def at_boundary(self) -> list[int]:
        """All that was handed out is consumed now; the ids of those samples, where the data knows them."""
        if isinstance(self.data, Batches):
            before = self.epoch, self.batch_in_epoch
            self.data.consumed()  # all handed out, be it by us or to a script that iterates by itself
            self.epoch, self.batch_in_epoch = self.data.epoch, self.data.batch_in_epoch
            if self._first and before == (self.epoch, self.batch_in_epoch):
                self._tell_unused()
            self._first = False
        elif self.drawn:
            self.epoch, self.batch_in_epoch = self._next_epoch, self._next_batch
        if len(self._draws) <= _LIKE:
            self._draws.append(self.drawn)
            self._tell_ahead()
        self.drawn = 0
        ids, self._ids = self._ids, []
        return ids

    def _tell_ahead(self) -> None:
        first, *others = self._draws
        if len(others) == _LIKE and first > max(others) == min(others) > 0:
            say(
                f"the first step drew {first} batches, and each of the next {_LIKE} drew {others[0]}: unless one "
                "was skipped, the script draws each before the ckpt.step() of the one before, by which it counts as "
                "trained on, and a restart passes it over; draw it after, and leave fetching ahead to "
                "batches(…, workers=…, prefetch=…)"
            )

    def _tell_unused(self) -> None:
        say(
            "nothing was drawn from data=… before the first boundary: where it stands is not what the script trains "
            "on, which a restart begins anew; draw from ckpt.steps(), or iterate over batches(…) itself"
        )

    def resume(self, epoch: int, batch_in_epoch: int) -> None:
        """Take over the counters of a generation."""
        self.epoch, self.batch_in_epoch = epoch, batch_in_epoch

    def identity(self) -> dict[str, Any]:
        """What the data says it is, for the index."""
        found = getattr(self.data, "identity", None)
        found = found() if callable(found) else found
        return dict(recorded(found)) if isinstance(found, dict) else {}

    def drift(self) -> list[str]:
        """How the data differs from what the restored state was taken from."""
        return [f"data: {line}" for line in getattr(self.data, "drift", ())]

    def close(self) -> None:
        """End the loader processes, so that nothing has to be waited for at exit."""
        self._iterator = None
        if callable(close := getattr(self.data, "close", None)):
            with contextlib.suppress(Exception):
                close()

    def _count(self) -> None:
        self._next_batch += 1
        self.drawn += 1
        ids = getattr(self.data, "last_ids", None)
        if ids is not None:
            self._ids.extend(ids)
