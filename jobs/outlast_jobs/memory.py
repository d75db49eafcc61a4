"""How much memory can be had: the machine's, or what the control groups around this process leave of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

SPARE = 128 << 20
"""Bytes of memory that stay free beside a copy of a state; with less, there is none."""


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
