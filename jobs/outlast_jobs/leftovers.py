"""What killed writers left under temporary names: known by name and age, and removed by who writes there next."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.durable import NAME_LIMIT, TEMPORARY

STALE = 600.0
"""Seconds without a change after which a temporary is nobody's; a younger one may be written by somebody right now."""


def clear_beside(path: Path) -> None:
    """Remove what killed writes of ``path`` left in its folder. Never raises: what stays is tried again next time."""
    try:
        for leftover in filter(is_stale, left_beside(path)):
            durable.delete_tree(leftover)
    except OSError:
        pass


def left_beside(path: Path) -> list[Path]:
    """Every temporary of ``path`` in its folder, also one that somebody is writing right now."""
    mine = re.compile(re.escape(f"{TEMPORARY}{path.name[:NAME_LIMIT]}-") + "[0-9a-f]{12}")
    return [path.with_name(name) for name in os.listdir(path.parent) if mine.fullmatch(name)]


def is_stale(path: Path) -> bool:
    """Whether nobody has written for long: to a file, or to a folder and what is in it. OSError where it is gone.

    By the file system's own clock, since a file server's may be another than ours. What lies as far ahead of it is of
    a clock that was set back, and nobody's either.
    """
    found = path.lstat()
    newest = found.st_mtime
    if stat.S_ISDIR(found.st_mode):
        newest = max([newest, *(entry.lstat().st_mtime for entry in path.iterdir())])
    return abs(time.time() - newest) > STALE and abs(clock_of(path.parent) - newest) > STALE


def clock_of(folder: Path) -> float:
    """Unix seconds by the file system's clock: what a file made there is dated. Our own where none can be made."""
    made = folder / f"{TEMPORARY}clock-{os.urandom(6).hex()}"
    try:
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return time.time()
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)
        os.unlink(made)
