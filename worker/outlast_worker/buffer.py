"""The memory that a save is copied to: one for the process, as large as a generation's files, and used again."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast_jobs.blocks import ALIGN

SPARE = 128 << 20
"""Bytes of memory that stay free beside a copy; with less, saves are streamed without one."""

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_STRETCH = 32 << 20  # what is touched in one call


class Buffer:
    """Memory of its own, which a fork shares and does not copy; a descriptor can be handed on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pinned = False
        """Whether a device reaches it by itself."""
        self.fd = os.memfd_create("outlast-save", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, size)
            self._memory = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def touch(self) -> None:
        """Have the system give all of it now: the first write to a page costs many times a copy of it."""
        libc = ctypes.CDLL(None)
        for start in range(0, self.size, _STRETCH):
            length = min(_STRETCH, self.size - start)
            if libc.madvise(ctypes.c_void_p(self.address + start), ctypes.c_size_t(length), _POPULATE_WRITE):
                ctypes.memset(self.address + start, 0, length)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            os.close(self.fd)


class Buffers:
    """The buffer, made in a thread of its own: until it is there, and where memory is short, there is none."""

    def __init__(self) -> None:
        self._ready: Buffer | None = None
        self._making: threading.Thread | None = None
        self.finish: Callable[[Buffer], None] | None = None
        """What else is done with a new one before it is there."""

    def of(self, size: int) -> Buffer | None:
        """The buffer, if it is there and has room for ``size`` bytes. Nothing may still use what it held."""
        ready = self._ready
        return ready if ready is not None and ready.size >= size else None

    def prepare(self, size: int) -> None:
        """Begin to make one for ``size`` bytes, unless there is one, or one under way, or no memory for it."""
        if size <= 0 or self.of(size) is not None or (self._making is not None and self._making.is_alive()):
            return
        self._ready = None
        with contextlib.suppress(RuntimeError):  # no thread for it: then there is no buffer
            self._making = threading.Thread(
                target=self._make, args=(size,), name="outlast-buffer", daemon=True
            )
            self._making.start()

    def settled(self) -> None:
        """Wait until what is under way is made."""
        if self._making is not None:
            self._making.join()

    def _make(self, size: int) -> None:
        with contextlib.suppress(OSError, ValueError, MemoryError):
            if not roomy(size, available()):
                return
            buffer = Buffer(size)
            buffer.touch()
            if self.finish is not None:
                self.finish(buffer)
            self._ready = buffer


def aligned(sizes: Sequence[int]) -> list[int]:
    """Where files of these sizes begin, one behind another on whole pages, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // ALIGN) * ALIGN)
    return starts


def roomy(size: int, free: int | None) -> bool:
    """Whether a copy of this size leaves enough; where nothing says how much is free, it is not risked."""
    return free is not None and free >= size + SPARE


def available(root: Path = Path("/")) -> int | None:
    """Bytes of memory that can be had: the machine's, or what the control groups around this process leave."""
    found = _machine(root / "proc/meminfo")
    limits = [left for left in _groups(root) if left is not None]
    return None if found is None else min([found, *limits])


def _machine(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _groups(root: Path) -> list[int | None]:
    """What is left under the limit of each group above this process, in both versions of the interface."""
    found: list[int | None] = []
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, inner = line.split(":", 2)
            if not controllers:
                found += _upwards(
                    root / "sys/fs/cgroup", inner, "memory.max", "memory.current", "inactive_file"
                )
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                found += _upwards(root / "sys/fs/cgroup/memory", inner, *names)
    return found


def _upwards(top: Path, inner: str, limit: str, used: str, cache: str) -> list[int | None]:
    here = top / inner.strip("/")
    return [
        _left(folder, limit, used, cache) for folder in (here, *here.parents) if folder.is_relative_to(top)
    ]


def _left(folder: Path, limit: str, used: str, cache: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        free = int(most) - int((folder / used).read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(cache + " "):  # the kernel gives it back when asked
                free += int(line.split()[1])
        return max(free, 0)
    return None
