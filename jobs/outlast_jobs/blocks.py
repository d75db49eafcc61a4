"""Fill a file whose length is known, block by block: hashed and written in one pass, past the page cache if it can.

Direct writes spare the copy into the page cache, and leave there what the training wants to read again.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

BLOCK = 8 << 20
"""Bytes of a block: large enough for a disk, small enough to be in the processor's cache while it is hashed."""
ALIGN = 4096
"""What memory, length and place of a direct write must be a multiple of; no less will do on every disk."""
DIRECT_FROM = 1 << 20
"""Smaller files go through the page cache: a direct write costs a wait for the disk for each of them."""

_KEEP_SIZE = 0x01  # fallocate(2): the length grows with the bytes, so that a torn file can be told by it
_UNABLE = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


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
    direct = direct and size >= DIRECT_FROM and _go_direct(fd)
    _reserve(fd, size)
    total = 0
    # Never closed by hand: an error's traceback may still hold a part of it.
    scratch = memoryview(mmap.mmap(-1, max(ALIGN, min(BLOCK, size))))
    while total < size:
        block = image.block(total, scratch[: min(BLOCK, size - total)])
        digest.update(block)
        direct = _write_at(fd, block, total, direct)
        total += block.nbytes
        if progress is not None:
            progress(block.nbytes)
    return total


def feed(image: Image, digest: Hasher, *, progress: Callable[[int], None] | None = None) -> int:
    """Hash all of ``image`` and write nothing; its bytes. ``progress`` is told of blocks of which none is written."""
    total = 0
    scratch = memoryview(mmap.mmap(-1, max(ALIGN, min(BLOCK, image.size))))
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
            direct = _go_buffered(fd)
        part = block[: block.nbytes - block.nbytes % ALIGN] if direct else block
        try:
            done = os.pwrite(fd, part, at)
        except OSError as error:
            if not direct or error.errno not in _UNABLE:
                raise
            direct = _go_buffered(fd)  # not at this place, or not on this file system at all
            continue
        block, at = block[done:], at + done
    return direct


def _go_direct(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        return False
    return True


def _go_buffered(fd: int) -> bool:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
    return False


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
