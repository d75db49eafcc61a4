"""The whole state of a training run as one tree, and back: parts, counters, losses, random streams, extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast_jobs.contract import Schema
from outlast_worker.feed import Feed
from outlast_worker.losses import LossHistory
from outlast_worker.parts import Parts
from outlast_worker.rng import capture_rng_state, restore_rng_state

if TYPE_CHECKING:
    from outlast_worker.oversights import Oversights


class TrainingState:
    """Everything that a generation holds, where it lives while the script trains."""

    def __init__(self, parts: Parts, feed: Feed) -> None:
        self.parts = parts
        self.feed = feed
        self.losses = LossHistory()
        self.step = 0
        self.extra: dict[str, Any] = {}
        self._rng_due: dict[str, Any] | None = None
        self._oversights: Oversights | None = None

    def watch(self, trees: dict[str, Any]) -> None:
        """Tell from now on of what the state, whose parts are these, would not bring back."""
        from outlast_worker.oversights import Oversights

        self._oversights = Oversights(self.parts, trees)

    def close(self) -> None:
        """The training is over: end its loader processes, and look no longer."""
        self.feed.close()
        if self._oversights is not None:
            self._oversights.close()

    def capture(self, rng: dict[str, Any] | None = None) -> dict[str, Any]:
        """The tree, with the tensors themselves in it; valid until the next update changes them."""
        trees, kinds = self.parts.capture()
        if self._oversights is not None and rng is None:
            self._oversights.at_save(self.step, trees)
        return {
            "schema": Schema.META,
            "parts": trees,
            "kinds": kinds,
            "counters": {
                "step": self.step,
                "epoch": self.feed.epoch,
                "batch_in_epoch": self.feed.batch_in_epoch,
            },
            "losses": self.losses.plain(),
            "rng": capture_rng_state() if rng is None else rng,
            "extra": self.extra,
        }

    def restore_extra(self, state: dict[str, Any]) -> None:
        """What a script may read before training starts: its own plain values and the counters."""
        counters = state["counters"]
        self.step = counters["step"]
        self.feed.resume(counters["epoch"], counters["batch_in_epoch"])
        self.losses.replace(state["losses"])
        self.extra.clear()
        self.extra.update(state["extra"])

    def restore_parts(self, state: dict[str, Any], *, other_torch: bool, code: dict[str, Any]) -> list[str]:
        """All registered parts, as `Parts.restore`; the random streams are kept back until `restore_rng`."""
        self._rng_due = state["rng"]
        return self.parts.restore(state["parts"], state["kinds"], other_torch=other_torch, code=code)

    def restore_rng(self, *, allow_loss: bool) -> list[str]:
        """Set the process-wide streams, as often as it is called before the first step after a restore.

        Last of all: making a model or an iterator draws from them. Returns what could not be set.
        """
        if self._rng_due is None:
            return []
        return restore_rng_state(self._rng_due, allow_loss=allow_loss)

    def trained(self) -> None:
        """A step was trained: the streams have moved on and are not to be set back."""
        self._rng_due = None
        if self._oversights is not None:
            self._oversights.at_boundary(self.step)
