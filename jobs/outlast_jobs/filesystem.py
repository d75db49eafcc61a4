"""Which file system a path lies on, and whether its locks and change notices can be trusted across hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

_MOUNTS = Path("/proc/self/mountinfo")

# Only these keep every lock and every change in the one kernel that we ask. All others are doubted: with
# NFS, Lustre, GPFS, CIFS, FUSE and 9p it hangs on mount options whether flock reaches other hosts or is
# granted to everybody, and a file system that nobody here has heard of is better doubted than believed.
_DISKS = frozenset(
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "ubifs"]
)
_OTHERS = frozenset(["tmpfs", "ramfs", "hugetlbfs", "overlay", "aufs", "vfat", "exfat", "ntfs3", "squashfs"])
_LOCAL = _DISKS | _OTHERS
_LOCAL_BUT_DOUBTED = frozenset(["fuseblk"])
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Filesystem(Struct, frozen=True):
    """What is known of the file system under a path."""

    type: str
    """As the kernel calls it: ext4, nfs4, fuse.sshfs; "unknown" where mountinfo does not say."""
    mount: Path
    network: bool
    """Other hosts may write to it without this kernel being told: watch by looking."""
    trusted_locks: bool
    """Whether flock excludes every process that can open the file, on every host."""


def filesystem_kind(path: Path) -> Filesystem:
    """The file system on which ``path`` lies, or will lie once it is made."""
    wanted = os.path.realpath(path)
    best: tuple[str, str] | None = None
    try:
        with _MOUNTS.open(encoding="utf-8", errors="surrogateescape") as lines:
            for mount, kind in _mounts(lines):
                # A later line covers an earlier one at the same place, hence >=.
                if _inside(wanted, mount) and (best is None or len(mount) >= len(best[0])):
                    best = (mount, kind)
    except OSError:
        best = None
    mount, kind = best or ("/", "unknown")
    return _described(kind, mount)


def on_local_disk(path: Path) -> bool:
    """Whether writing past the page cache is worth trying there: a network answers each such write by itself."""
    return filesystem_kind(path).type in _DISKS | {"overlay"}


def _described(kind: str, mount: str) -> Filesystem:
    local = kind in _LOCAL
    return Filesystem(kind, Path(mount), not local and kind not in _LOCAL_BUT_DOUBTED, local)


def _inside(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount + "/")


def _mounts(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Mount point and type of each line; a line has any number of optional fields before its " - "."""
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if dash and len(fields) >= 5 and after:
            yield unescaped(fields[4]), after.split(" ", 1)[0].strip()


def unescaped(field: str) -> str:
    """A field of a table of mounts, in which blanks and the like stand as a backslash and three octal digits."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)
