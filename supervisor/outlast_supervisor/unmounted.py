"""A run directory whose disk is not mounted: an empty folder stands in its place, and a new run would begin there."""

from __future__ import annotations

import contextlib
import os

from outlast_jobs.filesystem import filesystem_kind, unescaped
from outlast_jobs.rundir import RunDirectory

FSTAB = "/etc/fstab"
_AGAIN = "run me again when it is"


def missing_mount(path: str, mount: str, table: str) -> str:
    """The mount point of fstab(5) that a path should lie on, and does not, since it lies on ``mount``; else empty.

    Nothing is missing where something else is mounted further down: then the path lies on that.
    """
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 3 or fields[0].startswith("#") or not fields[1].startswith("/"):
            continue
        point = os.path.normpath(unescaped(fields[1]))
        if point != "/" and f"{path}/".startswith(f"{point}/") and not f"{mount}/".startswith(f"{point}/"):
            return point
    return ""


def without_its_disk(run: RunDirectory) -> tuple[str, str]:
    """Why no run can be looked for in this directory yet, and the cure; both empty where nothing is missing."""
    with contextlib.suppress(OSError):  # of an automount whose server is not there: that is told below
        if run.run_json.exists():
            return "", ""
    # by the kernel's list: os.path.ismount sees no bind mount of a folder on the same disk
    found = filesystem_kind(run.path)
    if found.type == "autofs":  # what was looked for just now would lie on another by now
        return (
            f'there is no run in "{run.path}", and what "{found.mount}" mounts by itself is not mounted',
            _AGAIN,
        )
    point = missing_mount(os.path.realpath(run.path), str(found.mount), _fstab())
    if not point or found.type == "unknown":
        return "", ""
    why = f'there is no run in "{run.path}", and "{point}", which {FSTAB} names, is not mounted'
    return why, f"{_AGAIN}, or begin there with --fresh"


def _fstab() -> str:
    try:
        with open(FSTAB, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
