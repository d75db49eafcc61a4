"""What copies beside the training need of a device: streams, events, and memory that it reaches by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from outlast_worker.buffer import Buffer


class Device(Protocol):
    """What does the work queued on a stream in order, and that on several streams side by side."""

    def current(self) -> Any:
        """The stream that the calling thread uses."""

    def side(self) -> Any:
        """A stream of our own."""

    def queue(self, stream: Any, work: Callable[[], None]) -> None:
        """Have operations of torch done on a stream, behind what is queued there."""

    def mark(self, stream: Any) -> Any:
        """An event: all that is queued on the stream by now is done."""

    def hold(self, stream: Any, event: Any) -> None:
        """What is queued on the stream from now on waits for the event. The calling thread does not."""

    def reach(self, event: Any) -> None:
        """Wait for the event, in any thread."""

    def used(self, tensor: torch.Tensor, stream: Any) -> None:
        """The memory of a tensor is read on that stream: not to be given to others before that is done."""

    def host(self, nbytes: int) -> torch.Tensor:
        """Memory of the host into which the device copies by itself."""


class Devices(Protocol):
    """The devices that this process uses."""

    def of(self, tensor: torch.Tensor) -> Device | None:
        """Where a tensor lies; None for the host, or a device of another kind."""

    def capturing(self) -> bool:
        """Whether what the calling thread queues is recorded, to be replayed, and not done."""

    def pinning(self, tensors: Iterable[torch.Tensor]) -> Callable[[Buffer], None] | None:
        """What makes a buffer one that the device of these tensors reaches by itself; in a thread of its own."""


class DeviceFailed(Exception):
    """A device has not done what was queued, or takes no more."""
