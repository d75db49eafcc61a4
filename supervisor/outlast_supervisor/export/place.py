"""Where an export goes: whether it can, and the folder beside it in which it is made until it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.leftovers import is_stale, left_beside
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import make_folder, temporary_name
from outlast_jobs.units import format_size
from outlast_supervisor.quick.ends import Failed

_CANNOT_WRITE = 73
_TRIES = 3  # of a name: another export that tidies up may take a folder away before it is locked

Tell = Callable[[str], None]


def target_of(dest: str, run: RunDirectory) -> Path:
    """The absolute path of DEST; Failed where an export cannot appear there."""
    target = Path(os.path.abspath(dest))
    if target.is_symlink():
        raise Failed(f'"{dest}" is a symbolic link; name the folder itself, or a new one')
    home = Path(os.path.realpath(run.path))
    there = Path(os.path.realpath(target))
    if there == home or home in there.parents:
        raise Failed(f'"{dest}" lies in the run directory "{run.path}"; an export goes somewhere else')
    try:
        entries = os.listdir(target)
    except FileNotFoundError:
        return target
    except NotADirectoryError:
        raise Failed(f'"{dest}" is no folder, or below something that is none; name a new folder') from None
    except OSError as error:
        raise cannot_write(target, error) from error
    if entries:
        raise Failed(f'"{dest}" is not empty, and nothing is exported over what is there; name a new folder')
    if os.path.ismount(target) or os.path.samefile(target, "."):
        what = "a mount point" if os.path.ismount(target) else "the current folder"
        raise Failed(f'"{dest}" is {what}, which cannot be replaced; name a folder in it: "{target}/export"')
    return target


def require_room(target: Path, size: int) -> None:
    """Failed where the file system has not the room, before anything is written there."""
    folder = next(above for above in target.parents if above.exists())
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < size:
        text = f'"{target}" needs {format_size(size)}, and "{folder}" has {format_size(free)} free'
        raise Failed(f"{text}; make room, or name another place", _CANNOT_WRITE)


def cannot_write(target: Path, error: OSError) -> Failed:
    """What to say of a failed write; a name inside the temporary folder means nothing to anybody."""
    text = f'cannot export to "{target}": {error.strerror or error}'
    return Failed(f"{text}; make room or give access, or name another place", _CANNOT_WRITE)


@contextlib.contextmanager
def beside(target: Path, tell: Tell) -> Iterator[Path]:
    """An empty folder beside ``target``, gone at the end unless it was published.

    A lock tells it from what a killed export left, which is removed here.
    """
    make_folder(target.parent)
    _clear(target, tell)
    temporary, fd = _locked(target)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            durable.delete_tree(temporary)
        os.close(fd)


def remove(folder: Path) -> None:
    """Take away what was copied of a generation that turned out bad."""
    durable.delete_tree(folder)


def publish(temporary: Path, target: Path) -> None:
    """Give a whole export its name; FileExistsError and the like where something is there by now."""
    durable.fsync_dir(temporary)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(target)  # an empty folder; anything else refuses
    durable.publish_dir(temporary, target)


def _locked(target: Path) -> tuple[Path, int]:
    for _ in range(_TRIES):
        temporary = temporary_name(target)
        temporary.mkdir()
        fd = durable.open_folder(temporary)
        if _lock(fd) is not False and os.path.lexists(temporary):
            return temporary, fd
        os.close(fd)
    raise OSError(errno.EBUSY, "another export goes there at the same time", str(target))


def _lock(fd: int) -> bool | None:
    """Whether the folder is ours now; None where its file system locks no folders."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _clear(target: Path, tell: Tell) -> None:
    for leftover in left_beside(target):
        try:
            fd = durable.open_folder(leftover)
            try:
                locked = _lock(fd)
                if locked or (locked is None and is_stale(leftover)):
                    durable.delete_tree(leftover)
                    tell(f'removed "{leftover.name}", which an export that was cut had left')
                else:
                    tell(f'"{leftover}" is left alone: an export that is under way, or was cut just now')
            finally:
                os.close(fd)
        except OSError as error:
            tell(f'cannot remove "{leftover}", which an earlier export left: {error.strerror or error}')
