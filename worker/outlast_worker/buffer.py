"""The memory that a save is copied to: one for the process, as large as a generation's files, and used again."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import threading
from collections.abc import Callable, Sequence

from outlast_jobs import buffer_state
from outlast_jobs.buffer_state import State
from outlast_jobs.direct import ALIGN
from outlast_jobs.memory import SPARE, addressable, available, roomy
from outlast_jobs.parallel import start_thread
from outlast_worker.hugepages import HUGE, map_shared, put_together

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_STRETCH = 32 << 20  # what is touched in one call


class Buffer:
    """Memory of its own, which a fork shares and does not copy; its descriptor is handed to the supervisor."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        """Room for ``size`` bytes of images; in the memory behind ``fd`` where that is given, which it owns then."""
        self.pinned = False
        """Whether a device reaches it by itself."""
        self.fd = _make(size) if fd is None else fd
        try:
            whole = os.fstat(self.fd).st_size
            memory = map_shared(self.fd, whole)
        except BaseException:
            os.close(self.fd)
            raise
        self.size = buffer_state.header_at(whole)
        """Bytes that images may take."""
        self.view = memory[: self.size]
        self.behind = memory[self.size :]
        """The header, and what follows it."""
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def tell(self, state: State) -> None:
        """Say how far the copy is, to whoever reads it after our end."""
        self.behind[buffer_state.STATE_AT] = state

    def touch(self) -> None:
        """Have the system give all of it now: the first write to a page costs many times a copy of it."""
        libc = ctypes.CDLL(None)
        huge = True
        for start in range(0, self.size, _STRETCH):
            length = min(_STRETCH, self.size - start)
            huge = huge and put_together(self.view[start : start + length - length % HUGE])
            if libc.madvise(ctypes.c_void_p(self.address + start), ctypes.c_size_t(length), _POPULATE_WRITE):
                for at in range(start, start + length, ALIGN):
                    self.view[at] = self.view[at]

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            os.close(self.fd)


def _make(size: int) -> int:
    """Memory that keeps its size: who reads it after our end must not be ended by a cut."""
    fd = os.memfd_create("outlast-save", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, buffer_state.whole(size))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, buffer_state.SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Buffers:
    """The buffer, made in a thread of its own: until it is there, and where memory is short, there is none.

    ``hand`` gives a descriptor to whoever keeps it beyond our end, ``release`` has it kept no longer.
    """

    def __init__(
        self, hand: Callable[[int], object] = lambda fd: None, release: Callable[[], object] = lambda: None
    ) -> None:
        self._hand = hand
        self._release = release
        self._ready: Buffer | None = None
        self._inherited: int | None = None
        self._making: threading.Thread | None = None
        self.finish: Callable[[Buffer], None] | None = None
        """What else is done with a new one before it is there."""

    def of(self, size: int) -> Buffer | None:
        """The buffer, if it is there and has room for ``size`` bytes. Nothing may still use what it held."""
        ready = self._ready
        return ready if ready is not None and ready.size >= size else None

    def inherit(self, fd: int) -> None:
        """Take over the memory of the attempt before: it is used if it is large enough, and else given up."""
        self._inherited = fd

    def disinherit(self) -> None:
        """Give up what was taken over and not used."""
        fd, self._inherited = self._inherited, None
        if fd is not None:
            os.close(fd)
            self._release()

    def prepare(self, size: int) -> None:
        """Begin to make one for ``size`` bytes, unless there is one, or one under way, or no memory for it."""
        if size <= 0 or self.of(size) is not None or (self._making is not None and self._making.is_alive()):
            return
        if self._ready is not None:  # before the larger one is there: two of them are more than we may have
            self._ready = None
            self._release()
        # without one there is no buffer
        self._making = start_thread(lambda: self._make(size), "outlast-buffer")

    def settled(self) -> None:
        """Wait until what is under way is made."""
        if self._making is not None:
            self._making.join()

    def _make(self, size: int) -> None:
        with contextlib.suppress(OSError, ValueError, MemoryError):
            buffer = self._adopted(size)
            if buffer is None:
                if not roomy(size, available()):
                    return
                buffer = Buffer(size)
            buffer.touch()
            if self.finish is not None:
                self.finish(buffer)
            self._hand(buffer.fd)
            self._ready = buffer

    def _adopted(self, size: int) -> Buffer | None:
        """What was taken over, where it has room; no page of it has to be made anew."""
        fd = self._inherited
        left = addressable()  # it is there, but to map it we may have no room
        fits = left is None or roomy(size, left)
        if fd is None or not fits or buffer_state.header_at(os.fstat(fd).st_size) < size:
            self.disinherit()
            return None
        self._inherited = None
        buffer = Buffer(size, fd)
        buffer.tell(State.NONE)  # what it holds has been read, and is another attempt's
        return buffer


def aligned(sizes: Sequence[int]) -> list[int]:
    """Where files of these sizes begin, one behind another on whole pages, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // ALIGN) * ALIGN)
    return starts


__all__ = ["SPARE", "Buffer", "Buffers", "aligned", "available", "roomy"]
