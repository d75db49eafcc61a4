"""Past the page cache: what direct reads and writes need, and how a descriptor is turned to them and back."""

from __future__ import annotations

import errno
import fcntl
import os

ALIGN = 4096
"""What memory, length and place must be a multiple of; no less will do on every disk."""
DIRECT_FROM = 1 << 20
"""Smaller files go through the page cache: directly, each of them costs a wait for the disk."""
UNABLE = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors that say: not at this place, or not on this file system at all."""


def go_direct(fd: int) -> bool:
    """Have the descriptor go past the page cache from now on; False where its file system has no such way."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        return False
    return True


def go_buffered(fd: int) -> None:
    """Have it go through the page cache again."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
