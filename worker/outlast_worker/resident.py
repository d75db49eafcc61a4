"""Ask the kernel whether it has a file's bytes in memory (``mincore(2)``), without having it fetch any."""

from __future__ import annotations

import ctypes
import mmap

_WINDOW = 64 << 10  # bytes at each place that is looked at


def is_on_disk_alone(fd: int, size: int) -> bool:
    """Whether none of a file of that size is there, by what is a quarter, a half and three quarters into it.

    False also where nobody says so: of a file of somebody else's the kernel calls all of it there.
    """
    return all(_is_absent(fd, size * quarter // 4, size) for quarter in (1, 2, 3))


def _is_absent(fd: int, at: int, size: int) -> bool:
    at -= at % mmap.ALLOCATIONGRANULARITY
    length = min(_WINDOW, size - at)
    try:
        # private and writable, though nobody writes: of such a mapping Python tells the address
        window = mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE, offset=at)
    except (OSError, ValueError):
        return False
    there = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    place = ctypes.c_char.from_buffer(window)
    failed = ctypes.CDLL(None).mincore(ctypes.byref(place), ctypes.c_size_t(length), there)
    return not failed and not any(flags & 1 for flags in there)
