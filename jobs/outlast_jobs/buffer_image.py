"""A file that lies in a buffer, on its way to the disk: its checksums are filled in as its bytes go by."""

from __future__ import annotations

from collections.abc import Sequence

from outlast_jobs.blocks import Image
from outlast_jobs.buffer_note import Storage
from outlast_jobs.checksum import crc32
from outlast_jobs.nans import has_nan

_PIECE = 1 << 20  # checksummed at a time, so that what looks at it next finds it in the processor's cache


class BufferImage(Image):
    """A file from the memory in which all of it but the crc32 of its storages stands.

    It also sees whether a storage of a format with NaNs holds one: `sick`.
    """

    def __init__(self, memory: memoryview, storages: Sequence[Storage]) -> None:
        self.sick = False
        self._memory = memory
        self._storages = storages
        self._next = 0
        self._crc = 0
        self._at = 0

    @property
    def size(self) -> int:
        return self._memory.nbytes

    def block(self, start: int, scratch: memoryview) -> memoryview:
        if start != self._at:
            raise ValueError(f"blocks are made in order: asked for {start}, {self._at} is next")
        end = self._at = start + scratch.nbytes
        while self._next < len(self._storages):
            storage = self._storages[self._next]
            last = storage.start + storage.nbytes
            self._take(storage, max(storage.start, start), min(last, end))
            if last > end:
                break
            for place in storage.crc_at:
                self._memory[place : place + 4] = self._crc.to_bytes(4, "little")
            self._next, self._crc = self._next + 1, 0
        return self._memory[start:end]

    def _take(self, storage: Storage, start: int, end: int) -> None:
        for at in range(start, end, _PIECE):
            piece = self._memory[at : min(at + _PIECE, end)]
            self._crc = crc32(piece, self._crc)
            if storage.kind and not self.sick:
                self.sick = has_nan(piece, storage.kind)
