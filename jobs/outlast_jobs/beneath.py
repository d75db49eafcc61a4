"""Open what lies in a run directory so that no symbolic link on the way leads out of it, whoever swaps one in.

A run directory may be shared, and whoever can rename in it can put a link in a folder's place between a look and
an open. So each folder on the way is opened by a descriptor of the one before it, and links are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_parent(root: Path, path: Path) -> int:
    """A descriptor (O_PATH) of the folder of ``path``, which lies under ``root``.

    Links above ``root``, and ``root`` itself being one, are the caller's own choice and are followed.
    OSError (ENOTDIR) with the whole path where a link or a file is in the place of a folder.
    """
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    here = root
    for part in path.relative_to(root).parts[:-1]:
        here = here / part
        try:
            inner = os.open(part, _FOLDER, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                text = "not a folder of its own: nothing is written through a link out of the run directory"
                raise OSError(error.errno, text, str(here)) from None
            raise OSError(error.errno, error.strerror, str(here)) from None
        finally:
            os.close(fd)
        fd = inner
    return fd


def open_beneath(root: Path, path: Path, flags: int) -> int:
    """``os.open`` of a path under ``root``, the last part included in what may not be a link."""
    parent = open_parent(root, path)
    try:
        return open_at(parent, path, flags)
    finally:
        os.close(parent)


def open_at(parent: int, path: Path, flags: int, mode: int = 0o666) -> int:
    """``os.open`` of the last part of a path in the folder that was opened; errors name the whole path."""
    try:
        return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def open_append(root: Path, path: Path) -> int:
    """A descriptor that appends to a regular file, which is made where it is missing; OSError for another thing.

    A pipe that lies in its place is not waited for.
    """
    fd = open_beneath(root, path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file, nothing is written to it", str(path))
        os.set_blocking(fd, True)  # the flag would go on to whoever inherits it
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_folder(path: Path) -> None:
    """OSError (ENOTDIR) where a folder of the run is a symbolic link, or is none at all."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        text = (
            "a folder of a run directory must be in it, and this is a symbolic link or no folder; "
            "to keep the run elsewhere name the place with run_dir"
        )
        raise NotADirectoryError(errno.ENOTDIR, text, str(path))
