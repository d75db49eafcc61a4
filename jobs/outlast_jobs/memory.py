"""How much memory can be had: the machine's, or what limits on this process and its control groups leave of it."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

SPARE = 128 << 20
"""Bytes of memory that stay free beside a copy of a state; with less, there is none."""


def roomy(size: int, free: int | None) -> bool:
    """Whether a copy of this size leaves enough; where nothing says how much is free, it is not risked."""
    return free is not None and free >= size + SPARE


def available(root: Path = Path("/")) -> int | None:
    """Bytes of memory that can be had: the machine's, or what limits on this process and its groups leave."""
    found = _machine(root / "proc/meminfo")
    limits = [left for left in (*_groups(root), addressable(root)) if left is not None]
    return None if found is None else min([found, *limits])


def addressable(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still map under ``ulimit -v``; None where it has no such limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int((root / "proc/self/statm").read_text().split()[0])
        return max(0, most - pages * os.sysconf("SC_PAGE_SIZE"))
    return None


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes that the kernel has killed for lack of memory: of this control group, else of the machine.

    None where it does not count them.
    """
    for file in (*_counts(root), root / "proc/vmstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in file.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None


def _counts(root: Path) -> list[Path]:
    """The files in which groups of both versions of the interface count."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, inner = line.split(":", 2)
            if not controllers:
                found.append(root / "sys/fs/cgroup" / inner.strip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"  # in a container that is its own group, whatever the path
                found += [top / inner.strip("/") / "memory.oom_control", top / "memory.oom_control"]
    return found


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
