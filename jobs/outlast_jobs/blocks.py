"""Fill a file whose length is known, block by block: hashed and written in one pass, past the page cache if it can.

Direct writes spare the copy into the page cache, and leave there what the training wants to read again.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from .direct import ALIGN, DIRECT_FROM, UNABLE, go_buffered, go_direct
from .errors import Cancelled
from .parallel import start_thread

BLOCK = 8 << 20
"""Bytes of a block: large enough for a disk, small enough to be in the processor's cache while it is hashed."""

_RING = 3  # blocks of a file: one is made, one is written, one waits
_KEEP_SIZE = 0x01  # fallocate(2): the length grows with the bytes, so that a torn file can be told by it


class Hasher(Protocol):
    """What ``hashlib`` objects are."""

    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class Image(ABC):
    """The content of a file of known length, made in order, a block at a time. It is used once."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes in all."""

    @abstractmethod
    def block(self, start: int, scratch: memoryview) -> memoryview:
        """The bytes from ``start``, as many as ``scratch`` has room for: put there, or where they already lie.

        The memory is page-aligned where ``start`` is a multiple of ``BLOCK``, and not changed until the next call.
        """


def fill(
    fd: int,
    image: Image,
    digest: Hasher,
    *,
    direct: bool,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write all of ``image`` to the empty file behind ``fd``; the bytes written. OSError as the disk says it."""
    size = image.size
    direct = direct and size >= DIRECT_FROM and go_direct(fd)
    _reserve(fd, size)
    # Never closed by hand: an error's traceback may still hold a part of it. What is not used is never given.
    ring = memoryview(_memory(_RING * max(ALIGN, min(BLOCK, size))))
    rooms = [ring[number * BLOCK : (number + 1) * BLOCK] for number in range(_RING if size > BLOCK else 1)]
    with _Writing(fd, direct, rooms, progress) as writing:
        for start in range(0, size, BLOCK):
            block = image.block(start, writing.room()[: min(BLOCK, size - start)])
            digest.update(block)
            writing.put(block, start)
    return size


def _memory(size: int) -> mmap.mmap:
    """Fresh memory, in huge pages where the kernel has some: a direct write from them costs less."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them has small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Writing:
    """Writes the blocks in the order in which they are put, in a thread behind the one that makes them.

    So the disk has work while the next block is hashed. A file of one block needs no thread.
    """

    def __init__(
        self, fd: int, direct: bool, rooms: list[memoryview], progress: Callable[[int], None] | None
    ) -> None:
        self._fd = fd
        self._direct = direct
        self._progress = progress
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._blocks: queue.SimpleQueue[tuple[memoryview, memoryview, int] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._room = rooms[0]
        self._thread: threading.Thread | None = None
        for room in rooms:
            self._free.put(room)
        if len(rooms) > 1:
            self._thread = start_thread(self._run, "outlast-disk")

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if self._thread is not None:
            if kind is not None:
                self._error = self._error or Cancelled()  # nothing more needs to be written
            self._blocks.put(None)
            self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def room(self) -> memoryview:
        """Room for the next block; what went wrong with an earlier one is raised."""
        self._room = self._free.get()
        if self._error is not None:
            raise self._error
        if self._thread is not None and self._progress is not None:
            self._progress(0)  # by each thread that works: whether to go on, and how
        return self._room

    def put(self, block: memoryview, at: int) -> None:
        """Have the block written there. It may lie in the room given for it, or elsewhere for good."""
        if self._thread is None:
            self._write(block, self._room, at)
        else:
            self._blocks.put((block, self._room, at))

    def _run(self) -> None:
        while (item := self._blocks.get()) is not None:
            try:
                if self._error is None:
                    self._write(*item)
                    continue
            except BaseException as error:  # raised by the thread that makes the blocks
                self._error = error
            self._free.put(item[1])

    def _write(self, block: memoryview, room: memoryview, at: int) -> None:
        self._direct = _write_at(self._fd, block, at, self._direct)
        if self._progress is not None:
            self._progress(block.nbytes)
        self._free.put(room)


def feed(image: Image, digest: Hasher, *, progress: Callable[[int], None] | None = None) -> int:
    """Hash all of ``image`` and write nothing; its bytes. ``progress`` is told of blocks of which none is written."""
    total = 0
    scratch = memoryview(_memory(max(ALIGN, min(BLOCK, image.size))))
    while total < image.size:
        block = image.block(total, scratch[: min(BLOCK, image.size - total)])
        digest.update(block)
        total += block.nbytes
        if progress is not None:
            progress(0)
    return total


def _write_at(fd: int, block: memoryview, at: int, direct: bool) -> bool:
    """Write it all; whether further blocks may go direct. The odd end of a file never does."""
    while block.nbytes:
        if direct and block.nbytes % ALIGN and block.nbytes < ALIGN:
            go_buffered(fd)
            direct = False
        part = block[: block.nbytes - block.nbytes % ALIGN] if direct else block
        try:
            done = os.pwrite(fd, part, at)
        except OSError as error:
            if not direct or error.errno not in UNABLE:
                raise
            go_buffered(fd)  # not at this place, or not on this file system at all
            direct = False
            continue
        block, at = block[done:], at + done
    return direct


def _reserve(fd: int, size: int) -> None:
    """Ask for the room at once: a disk that is full says so before the work, and the blocks lie together."""
    if size < DIRECT_FROM:
        return
    import ctypes  # here: 5 ms that most processes need not pay

    allocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if allocate is None:
        return
    # Not os.posix_fallocate: where the file system can't, that one writes into each block by itself.
    if allocate(fd, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS):
            raise OSError(code, os.strerror(code))
