"""Read a ``.pt`` file once: hashed while its tensors' bytes are read into the memory where they stay.

A copy in between would double the memory, and a first touch of fresh memory costs more than the hash. So the
bytes of each large tensor go straight into memory of their own, made of huge pages where the kernel has some. What
lies on the disk alone, as a save leaves it, goes there past the page cache, and is hashed while the disk goes on.
Only when the digest of the whole file is right is it given to the safe loader (`outlast_worker.verified`).
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import mmap
import os
import re
import zipfile
from collections.abc import Callable
from typing import IO, Any, cast

import torch

from outlast_jobs import durable
from outlast_jobs.blocks import Hasher
from outlast_jobs.direct import ALIGN, DIRECT_FROM, go_buffered, go_direct
from outlast_jobs.errors import Cancelled, Corrupt
from outlast_jobs.generation import FileEntry
from outlast_worker.behind import Behind
from outlast_worker.digest import bytes_of
from outlast_worker.hugepages import HUGE
from outlast_worker.ptfile import InMemory
from outlast_worker.resident import is_on_disk_alone
from outlast_worker.verified import Verified

_PIECE = 2 << 20  # one huge page: it is zeroed, filled and hashed while it is in the processor's cache
_VECTOR = 64  # bytes that computing wants memory to begin at a multiple of
_PLACED = 64 << 10  # bytes; below this, copying is cheaper than memory of its own
_TAILS = (128 << 10, 4 << 20)  # bytes at the end in which the archive's directory is looked for
_TENSOR = re.compile(r"[^/]+/data/[0-9]+")
_HEADER = 30  # bytes of a record's own header, which two texts of stated lengths follow


def read_verified(
    fd: int, member: str, entry: FileEntry, gave_up: Callable[[], bool], base: int | None = None
) -> Verified:
    """Read a file by its descriptor; Corrupt where it is not what the index says. Each byte is read once.

    With ``base`` it is of a larger file, and begins there.
    """
    size = os.fstat(fd).st_size if base is None else entry.bytes
    if size != entry.bytes:  # before that much memory is asked for
        raise Corrupt(f"{member!r} has {size} bytes, the index says {entry.bytes}")
    past_cache = base is None and size >= DIRECT_FROM and is_on_disk_alone(fd, size)
    try:
        if past_cache:
            # a good checkpoint must not be lost to a direct read: a fork meanwhile can spoil one, on older kernels
            with contextlib.suppress(Corrupt):
                return _Pass(fd, member, entry, gave_up).run(past_cache=True)
        return _Pass(fd, member, entry, gave_up, base or 0).run()
    except RuntimeError as error:
        if "allocate memory" in str(error):  # torch has no exception of its own for this
            raise MemoryError(f"{member!r}: {error}") from error
        raise


class _Pass:
    """One pass over a file, from its first byte to its last, but for the end, which is fetched first."""

    def __init__(
        self, fd: int, member: str, entry: FileEntry, gave_up: Callable[[], bool], base: int = 0
    ) -> None:
        self._fd = fd
        self._base = base
        self._member = member
        self._entry = entry
        self._gave_up = gave_up
        self._digest: Hasher = hashlib.sha256()
        self._direct = False
        self._at = 0
        self._tail_at = entry.bytes
        self._tail = memoryview(b"")
        self.verified = Verified(entry.bytes)

    def run(self, *, past_cache: bool = False) -> Verified:
        if past_cache and go_direct(self._fd):
            go_buffered(self._fd)
            self._direct = True
        records = self._records()
        os.lseek(self._fd, self._base, os.SEEK_SET)
        if not self._direct:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return self._read(records)
        self._digest = behind = Behind(self._digest)
        try:
            return self._read(records)
        finally:
            behind.end()

    def _read(self, records: list[tuple[int, int]]) -> Verified:
        for at, length in records:
            self._place(at, length)
        self._plain(self._entry.bytes)
        if (found := self._digest.hexdigest()) != self._entry.sha256:
            raise Corrupt(f"{self._member!r} has sha256 {found}, the index says {self._entry.sha256}")
        return self.verified

    def _records(self) -> list[tuple[int, int]]:
        """Where the directory says that large records are. A hint: what is wrong costs a copy, nothing else."""
        records: list[zipfile.ZipInfo] = []
        for length in _TAILS if self._entry.bytes >= _PLACED else ():
            self._extend_tail(length)
            # hostile content makes a parser raise all sorts of things
            with (
                contextlib.suppress(Exception),
                zipfile.ZipFile(cast(IO[bytes], _End(self._tail_at, self._tail))) as archive,
            ):
                records = archive.infolist()
                break
        shared = collections.Counter(info.header_offset for info in records)
        return sorted(
            (info.header_offset, info.file_size)
            for info in records
            if info.file_size >= _PLACED
            and info.compress_type == zipfile.ZIP_STORED
            and _TENSOR.fullmatch(info.filename)  # the pickle is read by the loader itself, and never lent
            and shared[info.header_offset] == 1
        )

    def _extend_tail(self, length: int) -> None:
        """Have that many bytes of the file's end; those that are there already are not read again."""
        at = max(0, self._entry.bytes - length)
        tail = memoryview(bytearray(self._entry.bytes - at))
        fresh = self._tail_at - at
        os.lseek(self._fd, self._base + at, os.SEEK_SET)
        self._fetch(tail[:fresh])
        tail[fresh:] = self._tail
        self._tail_at, self._tail = at, tail

    def _place(self, header_at: int, length: int) -> None:
        if header_at < self._at or header_at + _HEADER + length > self._entry.bytes:
            return  # it overlaps another or leaves the file
        self._plain(header_at)
        header = memoryview(bytearray(_HEADER))
        self._take(header)
        start = header_at + _HEADER
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        self._plain(min(start, self._entry.bytes))
        if start + length <= self._entry.bytes:
            storage, room = _room(length, start)
            self._take(room, storage)

    def _plain(self, until: int) -> None:
        """What lies between records, or is none: kept as it is."""
        if until > self._at:
            self._take(memoryview(bytearray(until - self._at)))

    def _take(self, part: memoryview, storage: torch.UntypedStorage | None = None) -> None:
        self.verified.add(self._at, part, storage)
        fits = storage is not None and len(part) >= HUGE
        ends = range(_PIECE - self._at % ALIGN, len(part), _PIECE)  # where pages end in the file as well
        for start, end in itertools.pairwise((0, *ends, len(part))):
            if self._gave_up():
                raise Cancelled(f"another file is damaged: {self._member!r} was not read to its end")
            piece = part[start:end]
            fresh = max(0, min(len(piece), self._tail_at - self._at))
            self._fetch(piece[:fresh], fits=fits)
            if fresh < len(piece):
                skip = self._at + fresh - self._tail_at
                piece[fresh:] = self._tail[skip : skip + len(piece) - fresh]
            self._digest.update(piece)
            self._at += len(piece)

    def _fetch(self, into: memoryview, *, fits: bool = False) -> None:
        """The next bytes. Where ``fits``, memory and file have the same place in a page."""
        filled = 0
        while filled < len(into):
            piece = into[filled:]
            got = -1
            if fits and self._direct:
                if skip := -(self._at + filled) % ALIGN:
                    piece = piece[:skip]
                else:
                    got = self._fetch_direct(piece)
            if got < 0:
                got = durable.read_into(self._fd, piece)
            if not got:
                at = os.lseek(self._fd, 0, os.SEEK_CUR) - self._base
                raise Corrupt(f"{self._member!r} ended after {at} bytes, the index says {self._entry.bytes}")
            filled += got

    def _fetch_direct(self, into: memoryview) -> int:
        """As many of the next bytes as can be read past the page cache at once; -1 where none can."""
        whole = len(into) // ALIGN * ALIGN
        if not whole:
            return -1
        go_direct(self._fd)
        try:
            return durable.read_into(self._fd, into[:whole])
        except OSError:  # whatever it is: where the disk is at fault, it fails the page cache as well
            self._direct = False
            return -1
        finally:
            go_buffered(self._fd)


def _room(length: int, at: int) -> tuple[torch.UntypedStorage, memoryview]:
    """Fresh memory for one tensor, which lies there in its file; it is given back when the last tensor in it goes."""
    if length < HUGE:
        storage = torch.UntypedStorage(length)
        return storage, bytes_of(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
    try:
        # private: a loader process that is forked must not write into the trainer's memory
        memory = mmap.mmap(-1, length + HUGE + ALIGN, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a tensor of {length} bytes: {error.strerror}") from error
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE
    if at % _VECTOR == 0:
        start += at % ALIGN  # a direct read takes memory and file at the same place in a page
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them has small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    room = memoryview(memory)[start : start + length]
    return torch.frombuffer(room, dtype=torch.uint8).untyped_storage(), room


class _End(InMemory):
    """A file of which only the end is there: enough to find an archive's directory."""

    def __init__(self, start: int, tail: memoryview) -> None:
        super().__init__(start + len(tail))
        self._start = start
        self._tail = tail

    def readinto(self, buffer: Any) -> int:
        if self._at < self._start:
            raise OSError("the directory reaches further back")
        piece = self._tail[self._at - self._start :][: len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
