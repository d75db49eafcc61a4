"""Tensors of a device on their way into the buffer, ordered by the device itself: nobody waits but who needs them.

The training's thread queues the copies at the boundary, on a stream beside the training's, behind all that is queued
there by then. Before an update that stream is made to wait for them, and the thread goes on. The thread that writes
waits until they are there. What is copied at once is queued on the training's own stream, in front of what follows.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct

from outlast_worker import window
from outlast_worker.devices import Device, DeviceFailed, Devices
from outlast_worker.shards import Component
from outlast_worker.sources import Mode

PIECE = 32 << 20
"""Bytes of one copy: a small one of the training's own waits for no more than that."""

_SAMPLE = 64  # bytes
_MOST = 8  # samples of one tensor: each costs about a microsecond at the boundary


class _Copy(Struct, frozen=True):
    source: torch.Tensor  # bytes on the device; it keeps their memory
    target: torch.Tensor  # bytes of the buffer

    def make(self) -> None:
        self.target.copy_(self.source, non_blocking=True)

    def pieces(self) -> list[_Copy]:
        if self.source.numel() <= PIECE:
            return [self]
        parts = zip(self.source.split(PIECE), self.target.split(PIECE), strict=True)
        return [_Copy(source, target) for source, target in parts]


class Transfers:
    """The copies of one save that devices make. Without ``devices`` there are none, and all of this is nothing.

    ``into`` is the buffer's bytes. Where it is not ``pinned``, memory that a device reaches by itself, threads carry
    the pieces, and the one that is about to change something waits for the last.
    """

    def __init__(
        self,
        devices: Devices | None = None,
        into: torch.Tensor | None = None,
        *,
        pinned: bool = False,
        lazily: bool = True,
    ) -> None:
        self.arrived = True
        """Whether everything is in the buffer."""
        self.failed = False
        """Whether a device failed: it may still write into the buffer."""
        self._devices = devices
        self._into = into
        self._pinned = pinned
        self._lazily = lazily
        self._lanes: dict[int, _Lane] = {}

    def take(self, component: Component, start: int, *, lazily: bool) -> bool:
        """Copy the bytes of a component to this place in the buffer; False where that is not for us to do."""
        if self._devices is None or self._into is None:
            return False
        device = self._devices.of(component.members[0].tensor)
        place = component.place()
        if device is None or place is None:
            return False
        storage, at = place
        nbytes = component.storage().nbytes
        if nbytes:
            source = torch.empty(0, dtype=torch.uint8, device=storage.device)
            source.set_(storage, at, (nbytes,), (1,))
            lane = self._lanes.get(id(device))
            if lane is None:
                lane = self._lanes[id(device)] = _Lane(device, self._pinned)
            copies = lane.later if lazily and self._lazily else lane.now
            copies.append(_Copy(source, self._into[start : start + nbytes]))
        return True

    def begin(self, mode: Mode) -> None:
        """By the training's thread, at the boundary. Raises DeviceFailed."""
        self.arrived = not self._lanes
        try:
            for lane in self._lanes.values():
                lane.begin(mode)
        except RuntimeError as error:
            self.failed = True
            raise DeviceFailed(str(error)) from error

    @property
    def open(self) -> int:
        """How many tensors may not change before `close`."""
        return sum(len(lane.later) for lane in self._lanes.values())

    @property
    def compared(self) -> int:
        """How many `close` has compared."""
        return sum(len(lane.compared) for lane in self._lanes.values())

    def close(self) -> None:
        """What was noted may change after this, by work that is queued on the current streams."""
        self.hold_back()
        for lane in self._lanes.values():
            lane.compare()

    def hold_back(self) -> None:
        """Have what is queued on the current streams from now on wait for the copies."""
        if not self.arrived:
            for lane in self._lanes.values():
                lane.hold_back()

    def arrive(self) -> None:
        """Wait until everything is in the buffer. OSError where a device fails: that costs this save."""
        try:
            for lane in self._lanes.values():
                lane.arrive()
        except RuntimeError as error:
            self.failed = True
            raise OSError(errno.EIO, f"the copy from the device failed: {error}") from error
        self.arrived = True

    def kept(self) -> bool:
        """Once it has arrived: whether what was sampled at the boundary stands in the copy."""
        return all(lane.samples.found_again() for lane in self._lanes.values())

    def unchanged(self) -> bool:
        """Once closed and arrived: the same, and whether `close` found that nothing had changed by then."""
        try:
            return self.kept() and all(lane.same() for lane in self._lanes.values())
        except RuntimeError:
            self.failed = True
            return True


class _Lane:
    """The copies from one device."""

    def __init__(self, device: Device, pinned: bool) -> None:
        self.now: list[_Copy] = []
        self.later: list[_Copy] = []
        self.compared: list[_Copy] = []
        self.samples = _Samples()
        self._device = device
        self._pinned = pinned
        self._event: Any = None
        self._found: torch.Tensor | None = None  # by the comparison; other than zero where it differs
        self._found_event: Any = None
        self._left: list[_Copy] = []
        self._carried = 0
        self._error: RuntimeError | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()

    def begin(self, mode: Mode) -> None:
        device, current = self._device, self._device.current()
        if mode is Mode.REHEARSED:
            self.now, self.later, self.compared = [*self.now, *self.later], [], self.later
        now = [piece for copy in self.now for piece in copy.pieces()]
        later = [piece for copy in self.later for piece in copy.pieces()]
        self.samples = _Samples(device, self.later, random.Random())
        if self.compared:
            self._found = device.host(1).zero_()

        def at_once() -> None:
            self.samples.take()
            _make(now)

        device.queue(current, at_once)
        self._event = device.mark(current)
        if not later:
            return
        side = device.side()
        device.hold(side, self._event)
        for copy in self.later:
            device.used(copy.source, side)
        if self._pinned:
            device.queue(side, lambda: _make(later))
            self._event = device.mark(side)
        else:
            self._left = later[::-1]
            self._carried = len(later)

    def hold_back(self) -> None:
        self._carry()
        self._device.hold(self._device.current(), self._event)

    def arrive(self) -> None:
        self._carry()
        if self._error is not None:
            raise self._error
        self._device.reach(self._event)

    def compare(self) -> None:
        found = self._found
        if found is None:
            return
        device, pieces = self._device, [piece for copy in self.compared for piece in copy.pieces()]
        current = device.current()
        try:
            device.queue(current, lambda: _compare(pieces, found))
            self._found_event = device.mark(current)
        except torch.OutOfMemoryError:  # no room for a piece of it there: by this thread, then
            device.reach(self._event)
            found.fill_(not all(torch.equal(piece.source.cpu(), piece.target) for piece in pieces))

    def same(self) -> bool:
        if self._found_event is not None:
            self._device.reach(self._found_event)
        return self._found is None or not bool(self._found.item())

    def _carry(self) -> None:
        """Where the device can't reach the buffer by itself: make the copies one by one, and wait for the last."""
        if not self._carried:
            return
        device, side = self._device, self._device.side()
        while not self._done.is_set():
            try:
                piece = self._left.pop()
            except IndexError:
                self._done.wait()
                break
            try:
                device.queue(side, piece.make)
                device.reach(device.mark(side))
            except RuntimeError as error:  # raised where somebody needs the copy
                self._error = error
                self._done.set()
            with self._lock:
                self._carried -= 1
                if not self._carried:
                    self._done.set()


class _Samples:
    """Some bytes of each tensor as they were at the boundary."""

    def __init__(
        self, device: Device | None = None, copies: Sequence[_Copy] = (), chance: random.Random | None = None
    ) -> None:
        self._there: list[torch.Tensor] = []
        self._here: list[torch.Tensor] = []
        self._seen: torch.Tensor | None = None
        if device is None or chance is None or not copies or not window.SAMPLES:
            return
        for copy in copies:
            size = min(_SAMPLE, copy.source.numel())
            last = copy.source.numel() - size
            for _ in range(min(max(window.SAMPLES // len(copies), 1), _MOST)):
                at = chance.getrandbits(62) % (last + 1)
                self._there.append(copy.source[at : at + size])
                self._here.append(copy.target[at : at + size])
        self._seen = device.host(sum(part.numel() for part in self._here))

    def take(self) -> None:
        if self._seen is not None:
            self._seen.copy_(torch.cat(self._there), non_blocking=True)

    def found_again(self) -> bool:
        return self._seen is None or torch.equal(torch.cat(self._here), self._seen)


def _make(copies: Sequence[_Copy]) -> None:
    for copy in copies:
        copy.make()


def _compare(pieces: Sequence[_Copy], found: torch.Tensor) -> None:
    """Hold the device's bytes against the copy, there: the buffer's go back to it, a piece at a time."""
    device = pieces[0].source.device
    differs = torch.zeros(1, dtype=torch.uint8, device=device)
    room = torch.empty(max(piece.source.numel() for piece in pieces), dtype=torch.uint8, device=device)
    for piece in pieces:
        back = room[: piece.source.numel()].copy_(piece.target, non_blocking=True)
        differs.bitwise_or_(back.ne_(piece.source).any())
    found.copy_(differs, non_blocking=True)
