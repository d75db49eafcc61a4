"""Leases as another host would have written them, as old as a test likes, and that nothing of them was touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from outlast_jobs.lease import Holder


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def elsewhere(holder: Holder) -> Holder:
    """The same, as another host would have written it."""
    boot = "11111111-2222-3333-4444-555555555555"
    return msgspec.structs.replace(holder, host="elsewhere", process=f"4242:17:{boot}")


def make_old(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in folder.glob("lease-*"):
        os.utime(path, (then, then))
