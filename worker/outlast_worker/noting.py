"""Put into a buffer what a generation's files hold beside the tensors, and the note by which others can write them."""

from __future__ import annotations

from typing import IO, Any, NamedTuple, cast

import msgspec
import torch

from outlast_jobs.buffer_note import File, Note, encode_files, encode_note
from outlast_jobs.buffer_state import META_AT, NOTE_AT, header
from outlast_jobs.generation import META, GenerationName, Index
from outlast_jobs.nans import KINDS
from outlast_worker.buffer import Buffer
from outlast_worker.imaging import Plan, storages_of
from outlast_worker.layout import Layout
from outlast_worker.writing import meta_of, shard_name


def fill(planned: Plan, buffer: Buffer) -> None:
    """What torch writes around the tensors, at its places in the images."""
    for layout, start in zip(planned.layouts, planned.starts, strict=False):
        for at, data in layout.pieces:
            buffer.view[start + at : start + at + len(data)] = data


def note_down(
    planned: Plan, buffer: Buffer, name: GenerationName, index: Index, began: float
) -> memoryview | None:
    """Write the note, and ``meta.pt`` where it names it: that is returned. None where they can't be had so.

    ``index`` has no files yet; ``began`` is on the monotonic clock.
    """
    meta = _Room(buffer.behind[META_AT:])
    torch.save(meta_of(planned.taken), cast(IO[bytes], meta))
    if meta.at > meta.room.nbytes:
        return None
    shards = _shards(planned)
    if shards is None:
        return None
    files = (File(META, buffer.size + META_AT, meta.at),)
    note = Note(generation=str(name), began=began, files=files, index=msgspec.to_builtins(index))
    try:
        data = encode_note(note, shards)
    except ValueError:
        return None
    buffer.behind[NOTE_AT : NOTE_AT + len(data)] = data
    head = header(len(data))
    buffer.behind[: len(head)] = head
    return meta.room[: meta.at]


class _Noted(NamedTuple):
    """The shards of a plan as the note has them, which all plans from one mould have in common."""

    layouts: tuple[Layout, ...]
    starts: tuple[int, ...]
    files: bytes | None


_newest: _Noted | None = None


def _shards(planned: Plan) -> bytes | None:
    """The shards for the note. None where nobody could tell without torch whether such a state is a sick one."""
    global _newest
    known = _newest
    if known is None or known.layouts is not planned.layouts or known.starts is not planned.starts:
        _newest = known = _Noted(planned.layouts, planned.starts, _encoded(planned))
    return known.files


def _encoded(planned: Plan) -> bytes | None:
    files = [
        File(shard_name(number), start, layout.size, storages_of(layout, components))
        for number, (layout, components, start) in enumerate(
            zip(planned.layouts, planned.taken.shards, planned.starts, strict=False)
        )
    ]
    if any(storage.kind not in ("", *KINDS) for file in files for storage in file.storages):
        return None
    return encode_files(files)


class _Room:
    """A file of limited length that ``torch.save`` writes to; what does not fit is only counted."""

    def __init__(self, room: memoryview) -> None:
        self.room = room
        self.at = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.at + view.nbytes <= self.room.nbytes:
            self.room[self.at : self.at + view.nbytes] = view
        self.at += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        pass
