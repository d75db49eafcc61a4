"""A file system that lets another one through, and hangs where it is told to: `hanging.py BACKING MOUNTPOINT SWITCH`.

While the file SWITCH has a line `OPERATION TEXT`, every such call for a path with this text in it waits; its caller is
in the kernel, and no signal ends it. OPERATION `any` is all of them. SWITCH.held gets a line for each call that waits.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import mfusepy

_LOOK = 0.02


class Hanging(mfusepy.Operations):
    """Each call is the same call on the folder behind."""

    use_ns = True

    def __init__(self, backing: str, switch: str) -> None:
        self._backing = backing
        self._switch = switch

    def _at(self, path: str, operation: str) -> str:
        """Where it really lies, once nothing holds the call any more."""
        told = False
        while any(op in (operation, "any") and text in path for op, text in self._wanted()):
            if not told:
                told = True
                fd = os.open(f"{self._switch}.held", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                os.write(fd, f"{operation} {path}\n".encode())
                os.close(fd)
            time.sleep(_LOOK)
        return self._backing + path

    def _wanted(self) -> Iterator[tuple[str, str]]:
        try:
            with open(self._switch, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            operation, _, text = line.partition(" ")
            yield operation, text

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path, "stat"))
        kept = ("mode", "nlink", "uid", "gid", "size", "ino", "blocks")
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
        return {f"st_{name}": getattr(found, f"st_{name}") for name in kept} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path, "list"))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path, "open"), flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path, "create"), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._at(path, "read")
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._at(path, "write")
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._at(path, "truncate"), length)

    def flush(self, path: str, fh: int) -> int:
        self._at(path, "close")
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._at(path, "fsync")
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._at(path, "fsync")
        return 0

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old, "rename"), self._backing + new)

    def link(self, target: str, source: str) -> None:
        os.link(self._backing + source, self._at(target, "link"))

    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._at(target, "link"))

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path, "stat"))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path, "unlink"))

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path, "mkdir"), mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path, "unlink"))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path, "stat"), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._at(path, "stat"), uid, gid)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._at(path, "stat"), ns=times)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path, "stat"))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "frsize", "namemax")
        return {f"f_{name}": getattr(found, f"f_{name}") for name in names}

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        raise mfusepy.FuseOSError(errno.ENOTSUP)


if __name__ == "__main__":
    behind, mountpoint, switched = map(os.path.abspath, sys.argv[1:4])
    mfusepy.FUSE(Hanging(behind, switched), mountpoint, foreground=True, attr_timeout=0, entry_timeout=0)
