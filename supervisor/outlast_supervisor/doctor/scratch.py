"""Try, in a scratch file beside the run's own, what a run does to its directory; nothing of it stays."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from outlast_jobs.durable import TEMPORARY

from .. import linux
from .disk import Room, Tried, is_full

T = TypeVar("T")
_MOST = 1 << 30  # bytes that are allocated for an instant, to see a quota
_SHARE = 4  # and no more than this part of what is free: a run may be saving here now
_MOST_MEMORY = 64 << 20  # on tmpfs, where it costs memory


def within(job: Callable[[], T], seconds: float) -> T | None:
    """What a job gives, or None where it takes longer: its file system may be dead."""
    given: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def work() -> None:
        try:
            given.put((job(), None))
        except BaseException as error:
            given.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = given.get(timeout=seconds)
    except queue.Empty:
        return None
    if error is not None:
        raise error
    return result


def nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def attempt(run: Path, wanted: int, memory: bool) -> Tried:
    """Make, write, sync, lock, rename and remove a file, and allocate up to ``wanted`` bytes."""
    folder = nearest(run)
    # a name that the next start would sweep, should we be killed in between
    first = folder / f"{TEMPORARY}doctor-{uuid.uuid4().hex}"
    second = first.with_name(f"{first.name}-renamed")
    step, lock, drift = "make a file", "", None
    room = no_room = 0
    began = time.monotonic()
    try:
        fd = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            now = time.time()
            step = "write a file"
            os.write(fd, bytes(4096))
            drift = os.fstat(fd).st_mtime - now
            step = "sync a file"
            os.fsync(fd)
            step = "rename a file"
            os.rename(first, second)
            step = "sync the folder"
            _sync_folder(folder)
            took = time.monotonic() - began
            lock = _lock(fd, second)
            room = _worth_trying(folder, wanted, memory)
            no_room = _allocate(fd, room)
            step = "remove a file"
            os.unlink(second)
        finally:
            os.close(fd)
    except OSError as error:
        return Tried(str(folder), step, error.errno or errno.EIO)
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                path.unlink()
    return Tried(str(folder), sync=took, lock=lock, room=room, no_room=no_room, drift=drift)


def room(run: Path) -> Room | None:
    """What is free where the run is or will be; None where it cannot be asked."""
    try:
        found = os.statvfs(nearest(run))
    except OSError:
        return None
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> str:
    """Why flock cannot be relied on: refused, or granted to everybody."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return f"flock is refused ({error.strerror})"
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return ""
    finally:
        os.close(second)
    return "flock is granted to everybody"


def _worth_trying(folder: Path, wanted: int, memory: bool) -> int:
    found = os.statvfs(folder)
    return min(wanted, _MOST_MEMORY if memory else _MOST, found.f_bavail * found.f_frsize // _SHARE)


def _allocate(fd: int, length: int) -> int:
    """The errno of allocating so much, 0 where it went well or this file system cannot say."""
    if length <= 0:
        return 0
    try:
        linux.allocate(fd, length)
    except OSError as error:
        return (error.errno or errno.EIO) if is_full(error) else 0
    return 0
