"""The place of the run: can it be written, locked, synced and renamed in, and is there room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from msgspec import Struct

from outlast_jobs.filesystem import Filesystem
from outlast_jobs.jobfile import Keep
from outlast_jobs.units import format_size

from .line import Line, failure, ok, undecided, warning
from .past import Past

SLOW = 2.0  # seconds for a sync of 4 KiB, from which on saves are slow whatever their size
SPARE_INODES = 8
_DRIFT, _FAR_OFF = 5.0, 60.0  # seconds between the clock of this host and the file system's
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Tried(Struct, frozen=True):
    """What came of really doing it, in a scratch file that is gone again."""

    where: str  # the run directory, or the nearest folder above it that is there
    failed: str = ""  # the step that failed: make, write, sync, rename, sync folder, remove
    error: int = 0
    sync: float = 0.0  # seconds
    lock: str = ""  # why flock cannot be relied on, or empty
    room: int = 0  # bytes that were allocated for an instant
    no_room: int = 0  # errno of that, 0 where it went well or cannot be tried here
    drift: float | None = None  # seconds by which the file system's clock is ahead of ours


class Room(Struct, frozen=True):
    """What the file system says of its free space; inodes are None where it makes them as it needs them."""

    bytes: int
    inodes: int | None


def place(tried: Tried | None, run: str, patience: float) -> Iterator[Line]:
    """Whether a run can live there at all. None: the file system did not answer."""
    if tried is None:
        yield undecided(
            "write",
            f'"{run}": the file system did not answer in {patience:g} s',
            "see whether its server is up; a run here would hang, or choose another with --run-dir",
        )
        return
    where = f'"{tried.where}"' + ("" if tried.where == run else f' (where "{run}" will be made)')
    if tried.failed:
        yield failure("write", f"{where}: cannot {tried.failed}: {os.strerror(tried.error)}", _cure(tried))
        return
    if tried.sync >= SLOW:
        yield warning(
            "write",
            f"{where}: written, synced and renamed, but a sync of 4 KiB took {tried.sync:.1f} s",
            "saves will be slow; choose a faster file system, or save more seldom",
        )
    else:
        yield ok(
            "write", f"{where}: written, synced, renamed and removed again, in {tried.sync * 1000:.0f} ms"
        )


def _cure(tried: Tried) -> str:
    match tried.error:
        case errno.EROFS:
            return "it is mounted read-only; choose another with --run-dir"
        case errno.EACCES | errno.EPERM:
            return "give this user access, or choose another with --run-dir"
        case errno.ENOSPC | errno.EDQUOT:
            return "make room (bytes, inodes or quota), or choose another with --run-dir"
        case errno.ENOENT | errno.ENOTDIR:
            return "a part of the path is no folder; choose another with --run-dir"
    return "outlast needs that to seal a generation; choose another file system with --run-dir"


def lock(kind: Filesystem, tried: Tried | None) -> Iterator[Line]:
    """Whether flock keeps a second supervisor out, on every host."""
    if tried is None or tried.failed:
        return
    lease = (
        "a lease with a heartbeat is the second line; after the death of a host the next start waits a minute"
    )
    if tried.lock:
        yield warning("lock", f"{kind.type}: {tried.lock}: {lease}", "start the run on one host only")
    elif not kind.trusted_locks:
        yield warning(
            "lock",
            f"{kind.type}: flock works here and may not reach other hosts: {lease}",
            "nothing has to be done",
        )
    else:
        yield ok("lock", f"{kind.type}: flock excludes every other process")


def clock_of(tried: Tried | None) -> Iterator[Line]:
    """Whether this host and the file system agree on the time: leases are judged by the latter."""
    if tried is None or tried.drift is None or abs(tried.drift) < _DRIFT:
        return
    text = f"the file system's clock is {tried.drift:+.0f} s from this host's"
    cure = "synchronise the clocks (chrony, ntpd); the history will show wrong times"
    yield failure("clock", text, cure) if abs(tried.drift) >= _FAR_OFF else warning("clock", text, cure)


def space(
    found: Room | None, tried: Tried | None, keep: Keep, past: Past, limit: int | None
) -> Iterator[Line]:
    """Whether ``keep`` generations and the next one fit; ``limit`` is this process' largest file."""
    if found is None:
        return
    free = f"{format_size(found.bytes)} free"
    if past.size is None:
        if found.bytes == 0 or found.inodes == 0:
            yield failure("space", f"{free}, {found.inodes} inodes: nothing can be saved", "make room")
        elif past.script:
            yield ok("space", f"{free}; what its script saves, and how many it keeps, is up to it")
        else:
            yield warning(
                "space",
                f"{free}; how large a generation is, is known after the first save",
                f"it needs {keep.last + 1} times that (keep.last: {keep.last}, and the one being written)",
            )
        return
    size, most = format_size(past.size), max(1, keep.last + 1 - past.there)
    whole = f"{free}, {most} x {size} needed (keep.last: {keep.last}, {past.there} there)"
    if limit is not None and limit < past.size:
        yield failure(
            "space", f"files may have {format_size(limit)}, a generation has {size}", "raise ulimit -f"
        )
    if found.bytes < past.size:
        yield failure(
            "space", f"{free}, a generation takes {size}: the next save fails", "make room, or keep fewer"
        )
    elif found.bytes < most * past.size:
        yield warning("space", whole, "make room, or keep fewer: saves will fail before they are all there")
    elif tried is not None and tried.no_room:
        text = f"{free}, but {format_size(tried.room)} could not be had: {os.strerror(tried.no_room)}"
        yield failure("space", text, "a quota is full: raise it, or remove files")
    else:
        yield ok("space", whole)
    need = most * ((past.files or 4) + SPARE_INODES)
    if found.inodes is not None and found.inodes < need:
        text = f"{found.inodes} inodes free, {need} are needed"
        few = found.inodes < (past.files or 4) + SPARE_INODES
        cure = "remove files, or keep fewer generations"
        yield failure("space", text, cure) if few else warning("space", text, cure)


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no room."""
    return error.errno in _FULL
