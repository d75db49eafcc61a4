"""A second name for a file that nobody wrote to since it was looked at; told as an audit event, `outlast.link`."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from msgspec import Struct

from outlast_jobs.beneath import open_parent
from outlast_jobs.durable import open_regular


class Stamp(Struct, frozen=True):
    """By what a file is known again that nobody wrote to since: a link changes its ctime, and none of this."""

    inode: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """Of a file that was looked at."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


def link_file(source: Path, target: Path, stamp: Stamp, *, root: Path) -> None:
    """Give a file a second name, which must be free; both lie under ``root``, and no link on the way is followed.

    OSError where that can't be, and ESTALE where it is not the file with this stamp any longer. Durable is the name
    after ``fsync_dir`` of its folder.
    """
    sys.audit("outlast.link", str(source), str(target))
    with contextlib.ExitStack() as opened:
        old = open_parent(root, source)
        opened.callback(os.close, old)
        new = open_parent(root, target)
        opened.callback(os.close, new)
        os.link(source.name, target.name, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
        try:
            fd = open_regular(target.name, dir_fd=new)
            opened.callback(os.close, fd)
            if Stamp.of(os.fstat(fd)) != stamp:
                raise OSError(errno.ESTALE, "is not the file that was written", str(source))
            os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(target.name, dir_fd=new)
            raise
