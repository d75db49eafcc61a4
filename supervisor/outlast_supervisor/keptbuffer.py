"""The buffer of a worker, kept beyond its end: what was copied into it can still be saved, and restored from.

One descriptor at most. Its memory is never mapped here: one byte of it is read, at an attempt's end.
"""

from __future__ import annotations

import os

from outlast_jobs.buffer_state import State, sealed_size, state_of
from outlast_jobs.memory import roomy


class KeptBuffer:
    """All calls come from the loop's own thread."""

    def __init__(self) -> None:
        self.fd = -1
        self.size = 0
        self.inode = 0
        self.lent = False
        """Handed to the running worker, which has not handed it back so far."""

    def take(self, fd: int) -> bool:
        """Keep this one, which is owned from now on; False, and it is closed, where it is no buffer."""
        size = sealed_size(fd)
        if not 0 < size <= _memory():
            os.close(fd)
            return False
        inode = os.fstat(fd).st_ino
        if self.fd >= 0 and inode == self.inode:
            os.close(fd)
            self.lent = False
            return True
        self.drop()
        self.fd, self.size, self.inode = fd, size, inode
        return True

    def drop(self) -> None:
        """Keep it no longer: its memory is free as soon as nobody else has it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.size, self.inode, self.lent = -1, 0, 0, False

    @property
    def unsealed(self) -> int:
        """The bytes of a copy that is whole and that its worker did not come to seal; 0 where there is none."""
        return self.size if self.fd >= 0 and state_of(self.fd) is State.COPIED else 0

    def lend(self, free: int | None) -> bool:
        """Whether the next worker is given it too; if not it is dropped. ``free`` is the memory that can be had.

        A worker that was lent it and did not hand it back gets another chance without: a restore takes memory
        beside it, and it may have died of that.
        """
        if self.fd < 0 or self.lent or not roomy(2 * self.size, free):
            self.drop()
            return False
        self.lent = True
        return True


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
