"""A shard's file as an image: its pieces and the tensors' bytes, put together block by block with their checksums."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence

import torch
from msgspec import Struct

from outlast_jobs.blocks import Image
from outlast_jobs.checksum import crc32
from outlast_worker.layout import Layout, Storage, View, lay_out
from outlast_worker.nans import holds_nan
from outlast_worker.shards import PARTS, Component, Taken
from outlast_worker.snapshot import has_nan

_PIECE = 1 << 20  # what is copied is checksummed while it is still in the processor's cache
_KEPT = 8  # layouts of so many shards: those of a training stay the same, save after save

_layouts: dict[tuple[tuple[Storage, ...], tuple[str, ...]], Layout] = {}


def layout_of(taken: Taken, shard: int) -> Layout:
    """The layout of one shard's file. NoLayout where this torch can't tell."""
    components, order = taken.shards[shard], taken.order(shard)
    key = (tuple(component.storage() for component in components), tuple(order))
    found = _layouts.get(key)
    if found is None:
        found = lay_out(key[0], order)
        while len(_layouts) >= _KEPT:
            _layouts.pop(next(iter(_layouts)))
        _layouts[key] = found
    return found


class _Part(Struct, frozen=True):
    """A stretch of the file: a piece, or the bytes of a storage."""

    start: int
    end: int
    piece: bytearray | None
    gap: int = -1


class ShardImage(Image):
    """The file of one shard, from the tensors where they lie; or within ``memory``, where their bytes already are."""

    def __init__(
        self, layout: Layout, components: Sequence[Component], memory: memoryview | None = None
    ) -> None:
        self.nan = False
        """Whether a tensor of a part holds a NaN, by the bytes that went by so far."""
        self._layout = layout
        self._components = components
        self._memory = memory
        parts = [_Part(start, start + len(data), bytearray(data)) for start, data in layout.pieces]
        parts += [
            _Part(gap.start, gap.start + gap.nbytes, None, number) for number, gap in enumerate(layout.gaps)
        ]
        self._parts = sorted(parts, key=lambda part: part.start)
        self._starts = [part.start for part in self._parts]
        self._at = 0
        self._crc = 0
        self._source: _Source | None = None
        self._kind: torch.dtype | None = None

    def again(self) -> ShardImage:
        """The same content once more."""
        return ShardImage(self._layout, self._components, self._memory)

    @property
    def size(self) -> int:
        return self._layout.size

    def block(self, start: int, scratch: memoryview) -> memoryview:
        if start != self._at:
            raise ValueError(f"blocks are made in order: asked for {start}, {self._at} is next")
        block = scratch[:] if self._memory is None else self._memory[start : start + scratch.nbytes]
        end = start + block.nbytes
        while self._at < end:
            part = self._parts[bisect.bisect_right(self._starts, self._at) - 1]
            stop = min(part.end, end)
            room = block[self._at - start : stop - start]
            if part.piece is not None:
                room[:] = part.piece[self._at - part.start : stop - part.start]
            else:
                self._storage(part, room)
            self._at = stop
        return block

    def _storage(self, part: _Part, room: memoryview) -> None:
        """The next bytes of a storage; behind its last one the checksum is known."""
        gap = self._layout.gaps[part.gap]
        component = self._components[gap.storage]
        if self._at == part.start:
            self._crc = 0
            self._source = None if self._memory is not None else _Source(component, gap.nbytes)
            self._kind = component.dense(PARTS)
        for at in range(0, room.nbytes, _PIECE):
            piece = room[at : at + _PIECE]
            if self._source is not None:
                self._source.copy(self._at + at - part.start, piece)
            self._crc = crc32(piece, self._crc)
            if self._kind is not None and not self.nan:
                self.nan = holds_nan(piece, self._kind)
        if self._at + room.nbytes == part.end:
            if self._kind is None and not self.nan:
                self.nan = self._views_have_nan(component, part)
            self._source = None  # what was made for this storage is not needed any longer
            for place in gap.crc_at:
                self._write_crc(place)

    def _views_have_nan(self, component: Component, part: _Part) -> bool:
        """The same for a storage of which not all bytes belong to a tensor: by its tensors alone."""
        members = [member for member in component.members if member.bucket == PARTS]
        if self._memory is None:
            return has_nan([member.tensor for member in members])
        keys = {member.key for member in members}
        data = self._memory[part.start : part.end]
        return any(has_nan(_view(data, view)) for view in component.storage().views if view.key in keys)

    def _write_crc(self, place: int) -> None:
        part = self._parts[bisect.bisect_right(self._starts, place) - 1]
        if part.piece is None:
            raise ValueError("a checksum would lie within a tensor")
        at = place - part.start
        part.piece[at : at + 4] = self._crc.to_bytes(4, "little")


def _view(data: memoryview, view: View) -> torch.Tensor:
    return torch.frombuffer(data, dtype=view.dtype).as_strided(view.shape, view.stride, view.offset)


class _Source:
    """The bytes of one storage: the live tensor's, or a copy made here where it is a view or on a device."""

    def __init__(self, component: Component, nbytes: int) -> None:
        self._kept: object = component
        address = component.memory()
        if address is None:
            storage = next(iter(component.content().values())).untyped_storage()
            if storage.nbytes() != nbytes:
                raise ValueError(f"a storage has {storage.nbytes()} bytes, {nbytes} were laid out")
            self._kept, address = storage, storage.data_ptr()
        self._address = address

    def copy(self, at: int, room: memoryview) -> None:
        ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(room)), self._address + at, room.nbytes)
