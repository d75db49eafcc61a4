"""A disk whose power can be cut: what had not reached it is gone, and the next mount replays its journal."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

from tests.waiting import wait_until

_PATIENCE = 60.0
_CLONE_NEWNS = 0x00020000
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one number; with "no log flush" nothing more is written, see xfs(5)
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)
# a sparse image: xfs makes none that is smaller. ext4 by itself writes out data before some renames, which hides
# what a program forgot, so it is told not to.
_KINDS = {"ext4": ("64M", "loop,noauto_da_alloc"), "xfs": ("320M", "loop")}


class Disk:
    """A file system in a file of this machine. Only within `own_mounts`, so that nothing of it is left behind."""

    def __init__(self, folder: Path, kind: str) -> None:
        size, self._options = _KINDS[kind]
        self.kind = kind
        self.path = folder / f"{kind}-disk"
        self._image = folder / f"{kind}.img"
        self.path.mkdir(parents=True)
        _do("truncate", "-s", size, str(self._image))
        _do(f"mkfs.{kind}", "-q", str(self._image))
        self._mount()

    def cut(self) -> None:
        """The power is cut. Whatever still runs finds EIO from this instant on."""
        cut(self.path)

    def back(self) -> None:
        """The power comes back; the processes that had files open on it must be gone by now."""
        self._unmount()
        self._mount()

    def close(self) -> None:
        """Undo the mount and remove the image; what is still open on it does not keep it."""
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True)
        self._image.unlink()

    def _mount(self) -> None:
        _do("mount", "-t", self.kind, "-o", self._options, str(self._image), str(self.path))

    def _unmount(self) -> None:
        def unmounted() -> bool:
            return subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0

        wait_until(unmounted, _PATIENCE, f"the end of all that uses {self.path}")
        # Another mount of it, in a namespace that is about to go, would keep it alive, and nothing be replayed.
        wait_until(lambda: not _is_attached(self._image), _PATIENCE, "a disk that is at rest")


def cut(place: Path) -> None:
    """Cut the power of the disk on which a folder lies."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
    finally:
        os.close(fd)


@contextlib.contextmanager
def own_mounts() -> Iterator[None]:
    """Mounts made within, by this thread and its children, are seen by nobody else, and go with us however we end."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "cannot make a mount namespace")
        _do("mount", "--make-rprivate", "/")
        for mount in _loop_mounts():  # another test's disks must not live on in our copy
            subprocess.run(["umount", "--lazy", mount], capture_output=True)
        yield
        # A thread that was begun meanwhile shares our place and keeps us here, which harms nobody: all is as outside.
        if libc.setns(before, _CLONE_NEWNS) and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), "cannot go back to the mounts of before")
    finally:
        os.close(before)


def _loop_mounts() -> list[str]:
    lines = Path("/proc/thread-self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split(" - ")[1].split()[1].startswith("/dev/loop")]


def _is_attached(image: Path) -> bool:
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if file.read_text().strip() == str(image):
                return True
    return False


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
