"""CUDA's side of copies beside the training: streams, events, and the buffer as memory that it reaches by itself.

Imported only where a process has begun to use CUDA. By the documentation of ``torch.cuda`` and of the CUDA runtime
(stream management, event management, ``cudaHostRegister``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from outlast_worker.buffer import Buffer
from outlast_worker.devices import Device

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices, not only the one that registers
_SUCCESS = 0


class Cuda:
    """The CUDA devices of this process."""

    def __init__(self) -> None:
        self._known: dict[int, Device] = {}

    def of(self, tensor: torch.Tensor) -> Device | None:
        """Where a tensor lies; None for the host."""
        index = tensor.get_device() if tensor.is_cuda else -1
        if index < 0:
            return None
        if index not in self._known:
            self._known[index] = _Device(index)
        return self._known[index]

    def capturing(self) -> bool:
        """Whether what the calling thread queues becomes part of a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def pinning(self, tensors: Iterable[torch.Tensor]) -> Callable[[Buffer], None] | None:
        """What page-locks a buffer, in a thread of its own; None where no tensor is on such a device."""
        index = next((tensor.get_device() for tensor in tensors if tensor.is_cuda), None)
        return None if index is None else lambda buffer: _pin(buffer, index)


class _Device:
    """One device. Other threads than the training's have it as their device only while they use it.

    A thread's device is the first one until it says otherwise, and touching that may make a context there, which
    takes hundreds of megabytes of a device that the training does not use.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._side: torch.cuda.Stream | None = None

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._index)

    def side(self) -> torch.cuda.Stream:
        if self._side is None:
            self._side = torch.cuda.Stream(self._index)
        return self._side

    def queue(self, stream: torch.cuda.Stream, work: Callable[[], None]) -> None:
        with torch.cuda.device(self._index), torch.cuda.stream(stream):
            work()

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        # who waits for a blocking one sleeps, and takes no core from the training
        event = torch.cuda.Event(blocking=True)
        with torch.cuda.device(self._index):
            event.record(stream)
        return event

    def hold(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def reach(self, event: torch.cuda.Event) -> None:
        with torch.cuda.device(self._index):
            event.synchronize()

    def used(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        tensor.record_stream(stream)

    def host(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


_devices: Cuda | None = None


def devices() -> Cuda | None:
    """The devices; None on ROCm, where this was never looked at."""
    global _devices
    if _devices is None and torch.version.hip is None:
        _devices = Cuda()
    return _devices


def _pin(buffer: Buffer, index: int) -> None:
    """Page-lock a buffer. Where that fails it stays as it is, and copies to it are carried by threads.

    Never by the training's thread: CUDA keeps an error for the thread that had it, and shows it at the next kernel.
    """
    try:
        with torch.cuda.device(index):
            code = int(torch.cuda.cudart().cudaHostRegister(buffer.address, buffer.size, _PORTABLE))
    except RuntimeError:
        return
    if code == _SUCCESS:
        buffer.pinned = True
        # before the memory is unmapped, and not at the end of the process, when CUDA may be gone
        weakref.finalize(buffer, _unpin, buffer.address, index).atexit = False


def _unpin(address: int, index: int) -> None:
    with torch.cuda.device(index):
        torch.cuda.cudart().cudaHostUnregister(address)
