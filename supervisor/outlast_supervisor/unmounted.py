"""A run directory whose disk is not mounted: an empty folder stands in its place, and a new run would begin there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from outlast_jobs.filesystem import filesystem_kind

FSTAB = "/etc/fstab"
_OCTAL = re.compile(r"\\([0-7]{3})")


def missing_mount(path: str, table: str, is_mounted: Callable[[str], bool]) -> str:
    """The mount point of fstab(5) that a path lies below, where nothing is mounted there; else empty."""
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 3 or fields[0].startswith("#") or not fields[1].startswith("/"):
            continue
        point = os.path.normpath(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[1]))
        if point != "/" and path.startswith(f"{point}/") and not is_mounted(point):
            return point
    return ""


def without_its_disk(run_dir: str) -> str:
    """The mount point that has to be mounted before a run can be looked for here; empty where nothing is missing."""
    try:
        with open(FSTAB, encoding="utf-8", errors="surrogateescape") as file:
            table = file.read()
    except OSError:
        return ""
    return missing_mount(os.path.realpath(run_dir), table, _is_mounted)


def _is_mounted(point: str) -> bool:
    """By the kernel's list: ``os.path.ismount`` sees no bind mount of a folder on the same disk."""
    found = filesystem_kind(Path(point))
    return found.type == "unknown" or str(found.mount) == os.path.realpath(point)
