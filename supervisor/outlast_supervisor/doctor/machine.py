"""The machine: its clock, its memory, and the limits of this process."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from outlast_jobs.units import format_size

from .line import Line, failure, ok, warning

EARLIEST, LATEST = 2025, 2100  # years between which a clock is believed
FEW_FILES, TOO_FEW_FILES = 1024, 128
LITTLE_MEMORY = 256 << 20  # bytes: less than torch alone takes
_CGROUPS = (
    ("/sys/fs/cgroup{path}/memory.max", "/sys/fs/cgroup{path}/memory.current"),
    (
        "/sys/fs/cgroup/memory{path}/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory{path}/memory.usage_in_bytes",
    ),
)


class Machine(Struct, frozen=True):
    """Seconds and bytes; None where it is not known or not limited."""

    wall: float  # unix seconds
    files: int | None = None  # that this process may have open
    file_bytes: int | None = None  # that a file may have
    memory: int | None = None  # that is left, in the machine or in our cgroup


def verdict(found: Machine) -> Iterator[Line]:
    """Whether times in the history will be right, and whether a worker can live here."""
    year = time.gmtime(found.wall).tm_year
    if not EARLIEST <= year <= LATEST:
        yield failure(
            "clock", f"the clock says {year}", "set it (chrony, ntpd): times and leases would be wrong"
        )
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(found.wall)))
    if found.files is not None and found.files < FEW_FILES:
        text = f"{found.files} open files are allowed, loader processes need many"
        cure = f"ulimit -n {4 * FEW_FILES}, or LimitNOFILE in a unit"
        yield failure("limits", text, cure) if found.files < TOO_FEW_FILES else warning("limits", text, cure)
    if found.memory is not None and found.memory < LITTLE_MEMORY:
        yield warning(
            "memory",
            f"{format_size(found.memory)} are left, importing torch takes more",
            "ask for more memory, or end what takes it",
        )


def look() -> Machine:
    """Ask the kernel."""
    return Machine(
        time.time(),
        _limit(resource.RLIMIT_NOFILE),
        _limit(resource.RLIMIT_FSIZE),
        min((left for left in (_available(), *_of_cgroups()) if left is not None), default=None),
    )


def _limit(what: int) -> int | None:
    soft, _ = resource.getrlimit(what)
    return None if soft == resource.RLIM_INFINITY else soft


def _available() -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_cgroups() -> Iterator[int | None]:
    """What is left of the memory of each cgroup that we are in, and of those above."""
    for line in _read("/proc/self/cgroup").splitlines():
        path = line.split(":", 2)[-1]
        while path not in ("", "/"):
            for limit, used in _CGROUPS:
                most, now = _read(limit.format(path=path)), _read(used.format(path=path))
                if most.isdigit() and now.isdigit() and int(most) < 1 << 60:
                    yield max(0, int(most) - int(now))
            path = os.path.dirname(path)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
