"""A state on its way into a buffer from a device whose streams are threads, for the tests of who waits for whom."""

from __future__ import annotations

import threading
from typing import Any

import torch
from tests.worker.scripts.streams import Stream
from tests.worker.test_window import _state as state

from outlast_worker.buffer import Buffer
from outlast_worker.imaging import Plan, into, plan
from outlast_worker.saving import take_state
from outlast_worker.shards import place
from outlast_worker.sources import Mode
from outlast_worker.transfers import Transfers

LATER = 0.2
"""Seconds for what must not happen yet to happen; that it takes longer lets a defect pass, and fails nothing."""


class Save:
    """One save of some tensors."""

    def __init__(
        self, device: Any, *tensors: torch.Tensor, mode: Mode = Mode.MEANWHILE, pinned: bool = True
    ) -> None:
        parts = {f"t{number}": tensor for number, tensor in enumerate(tensors)}
        self.planned = plan(take_state(state(**parts)))
        self.buffer = Buffer(self.planned.size)
        self.transfers = Transfers(
            device, torch.frombuffer(self.buffer.view, dtype=torch.uint8), pinned=pinned
        )
        movable = {place(tensor): tensor for tensor in tensors}
        into(self.buffer, self.planned, mode, movable, self.transfers)

    def arrived(self) -> list[torch.Tensor]:
        self.transfers.arrive()
        copies = copied(self.planned, self.buffer)
        return [torch.frombuffer(copies[key], dtype=torch.float32) for key in sorted(copies)]


def copied(planned: Plan, buffer: Buffer) -> dict[str, memoryview]:
    """The bytes in the buffer of each tensor's storage."""
    found = {}
    for layout, components, start in zip(planned.layouts, planned.taken.shards, planned.starts, strict=False):
        for gap in layout.gaps:
            key = components[gap.storage].members[0].key
            found[key] = buffer.view[start + gap.start : start + gap.start + gap.nbytes]
    return found


def gated(stream: Stream) -> threading.Event:
    """Nothing that is queued on the stream from now on is done before the event is set."""
    gate = threading.Event()
    stream.put(gate.wait)
    return gate


def passed(stream: Stream) -> threading.Event:
    """Set when what is queued on the stream by now is done."""
    done = threading.Event()
    stream.put(done.set)
    return done
