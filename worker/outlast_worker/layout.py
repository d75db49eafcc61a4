"""Where each byte of a ``.pt`` file lies, found before the tensors' bytes are there; torch itself lays it out.

``torch.save`` under ``skip_data`` writes all but the tensors' bytes. What it writes is kept as pieces, and where
it leaves a gap a tensor's storage belongs. The file is a zip: the checksum of a member stands in a descriptor
right behind its bytes and in the directory at the end, so both can be filled in one pass, as the bytes go by.
"""

from __future__ import annotations

import functools
import io
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any, cast

import torch
from msgspec import Struct

_DESCRIPTOR = b"PK\x07\x08"  # a zip's data descriptor; four bytes of crc32 follow
_ENTRY = b"PK\x01\x02"  # an entry of a zip's directory
_CRC_IN_ENTRY = 16
# from there: crc32, two sizes, lengths of name, extra field and comment
_ENTRY_REST = struct.Struct("<I8xHHH")
_ENTRY_BYTES = 46  # before the name
_LOCAL = b"PK\x03\x04"  # what stands before a member's bytes
_LOCAL_REST = struct.Struct("<26xHH")  # of it: lengths of name and extra field, which both follow
_MEMBER = "archive/data/"  # and the number of the storage
_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x06"


class NoLayout(Exception):
    """This torch does not write a file that can be laid out beforehand; stream it."""


class View(Struct, frozen=True):
    """A tensor of a file, by what is recorded of it."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Storage(Struct, frozen=True):
    """The bytes behind one tensor, or behind several that share memory."""

    nbytes: int
    views: tuple[View, ...]


class Gap(Struct, frozen=True):
    """Where a storage's bytes belong."""

    start: int
    nbytes: int
    storage: int
    """Its place in what was laid out."""
    crc_at: tuple[int, int]
    """Where its crc32 is to be written: in its descriptor, and in the directory."""


class Layout(Struct, frozen=True):
    """A file without its tensors' bytes."""

    size: int
    pieces: tuple[tuple[int, bytes], ...]
    gaps: tuple[Gap, ...]


def lay_out(storages: Sequence[Storage], order: Sequence[str]) -> Layout:
    """Of a file that holds a dict with these keys in this order. NoLayout where torch can't, or not so."""
    _try_this_torch()
    return _laid_out(storages, order)


@functools.cache
def _try_this_torch() -> None:
    """Lay out a small file, fill it, and have torch load it: NoLayout where a tensor comes back as another.

    How torch numbers its tensors and in which order it writes them is its own affair, and other in some versions.
    """
    count = 24  # of one size each, so that nothing but a name tells them apart
    storages = [Storage(8, (View(str(number), torch.int32, (2,), (1,), 0),)) for number in range(count)]
    found = _laid_out(storages, [str(number * 7 % count) for number in range(count)])
    file = io.BytesIO(bytes(found.size))
    for start, data in found.pieces:
        file.seek(start)
        file.write(data)
    for gap in found.gaps:
        file.seek(gap.start)
        file.write(gap.storage.to_bytes(4, sys.byteorder) * 2)
    file.seek(0)
    try:
        loaded = torch.load(file, weights_only=True, mmap=False)
    except Exception as error:  # it raises all sorts of things for what it can't read
        raise NoLayout(f"torch {torch.__version__} does not read what is laid out: {error}") from error
    for number in range(count):
        if loaded[str(number)].tolist() != [number, number]:
            raise NoLayout(f"torch {torch.__version__} does not find a tensor where its layout has it")


def _laid_out(storages: Sequence[Storage], order: Sequence[str]) -> Layout:
    skip = getattr(torch.serialization, "skip_data", None)
    if skip is None:
        raise NoLayout("torch.serialization.skip_data is missing")
    stand_ins: dict[str, torch.Tensor] = {}
    numbers: dict[str, int] = {}
    for number, storage in enumerate(storages):
        # memory that is asked for and never touched, so that the system never gives it
        memory = torch.UntypedStorage(storage.nbytes)
        alone = len({(view.offset, view.shape, view.stride) for view in storage.views}) == 1
        tensor: torch.Tensor | None = None
        for view in storage.views:
            if tensor is None or not alone:  # tied ones are one object in the file, as they are in `content`
                empty = torch.empty(0, dtype=view.dtype, device="cpu")
                tensor = empty.set_(memory, view.offset, view.shape, view.stride)
            stand_ins[view.key] = tensor
            numbers[view.key] = number
    sink = _Sink()
    with skip():
        torch.save({key: stand_ins[key] for key in order}, cast(IO[bytes], sink))
    pieces = tuple((start, bytes(data)) for start, data in sink.pieces)
    wanted = list(dict.fromkeys(numbers[key] for key in order))  # torch numbers storages as it meets them
    return Layout(sink.at, pieces, _gaps(sink.gaps, wanted, storages, pieces))


class _Sink:
    """A file that ``torch.save`` writes to; where it seeks ahead it leaves a gap."""

    def __init__(self) -> None:
        self.at = 0
        self.pieces: list[tuple[int, bytearray]] = []
        self.gaps: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.pieces and self.pieces[-1][0] + len(self.pieces[-1][1]) == self.at:
            self.pieces[-1][1].extend(view)
        else:
            self.pieces.append((self.at, bytearray(view)))
        self.at += view.nbytes
        return view.nbytes

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 1 or offset < 0:
            raise NoLayout(f"torch seeks to {offset} from {whence}")
        if offset:
            self.gaps.append((self.at, offset))
        self.at += offset
        return self.at

    def tell(self) -> int:
        return self.at

    def flush(self) -> None:
        pass


def _gaps(
    gaps: Sequence[tuple[int, int]],
    wanted: Sequence[int],
    storages: Sequence[Storage],
    pieces: Sequence[tuple[int, bytes]],
) -> tuple[Gap, ...]:
    """The gaps with the places of their checksums, which must be where the format says, and empty.

    Whose bytes a gap is for, the name before it says, never its place: torch 2.6 writes "10" before "2".
    """
    starts = dict(pieces)
    before = {start + len(data): data for start, data in pieces}
    crcs = _directory(*pieces[-1])
    members = {f"{_MEMBER}{member}".encode(): storage for member, storage in enumerate(wanted)}
    members = {name: storage for name, storage in members.items() if storages[storage].nbytes}
    found = []
    for start, nbytes in gaps:
        name = _name(before.get(start, b""))
        storage = members.pop(name, None)
        if storage is None or storages[storage].nbytes != nbytes:
            raise NoLayout(f"torch left another gap than the tensors need: {name!r} of {nbytes} bytes")
        after = start + nbytes
        if starts.get(after, b"")[:8] != _DESCRIPTOR + bytes(4):
            raise NoLayout("no empty descriptor follows a tensor")
        crc = crcs.get(name)
        if crc is None:
            raise NoLayout("a tensor has no empty entry in the directory")
        found.append(Gap(start, nbytes, storage, (after + 4, crc)))
    if members:
        raise NoLayout(f"torch left no gap for {len(members)} of the tensors")
    return tuple(found)


def _name(head: bytes) -> bytes:
    """Of the member whose bytes follow, as its header at the end of ``head`` has it."""
    at = head.rfind(_LOCAL)
    try:
        name, extra = _LOCAL_REST.unpack_from(head, max(at, 0))
    except struct.error as error:
        raise NoLayout(f"what stands before a tensor can't be read: {error}") from error
    behind = at + _LOCAL_REST.size + name
    if at < 0 or behind + extra != len(head):
        raise NoLayout("no header of a member stands before a tensor")
    return head[behind - name : behind]


def _directory(start: int, tail: bytes) -> dict[bytes, int]:
    """Of each member without a crc32 yet, where in the file that stands in the directory. ``tail`` holds it all."""
    try:
        end = tail.rindex(_END)
        at = int.from_bytes(tail[end + 16 : end + 20], "little")
        if at == 0xFFFFFFFF:  # beyond four gigabytes the place is in the end record of zip64
            wide = tail.rindex(_END_64, 0, end)
            at = int.from_bytes(tail[wide + 48 : wide + 56], "little")
        at -= start
        found = {}
        while at >= 0 and tail[at : at + 4] == _ENTRY:
            crc, name, extra, comment = _ENTRY_REST.unpack_from(tail, at + _CRC_IN_ENTRY)
            if crc == 0:
                found[tail[at + _ENTRY_BYTES : at + _ENTRY_BYTES + name]] = start + at + _CRC_IN_ENTRY
            at += _ENTRY_BYTES + name + extra + comment
    except (ValueError, struct.error) as error:
        raise NoLayout(f"the directory of the file can't be read: {error}") from error
    return found
