"""Whether the next save will fit, as far as the file system says so beforehand."""

from __future__ import annotations

import os
from pathlib import Path

from outlast_jobs.units import format_size

_SPARE_INODES = 4  # the folder itself, the index, its digest, and one


def shortage(folder: Path, need_bytes: int, need_files: int) -> str | None:
    """Why a save of this size would not fit; None where it should, or where the file system can't say.

    Quotas are not seen here: those fail in the write itself.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    free = found.f_bavail * found.f_frsize
    if free < need_bytes:
        return (
            f'not enough space: the last generation took {format_size(need_bytes)} and "{folder.name}" has '
            f"{format_size(free)} left; free some, or keep fewer generations"
        )
    # Zero files in all means that this file system makes inodes as it needs them.
    if found.f_files > 0 and found.f_favail < need_files + _SPARE_INODES:
        return (
            f"not enough space: a generation takes {need_files + _SPARE_INODES} inodes and "
            f'"{folder.name}" has {found.f_favail} left; remove files, or keep fewer generations'
        )
    return None
