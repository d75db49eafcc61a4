"""What a buffer says of itself: how the copy of a state in it becomes the files of a generation.

So whoever has the buffer's descriptor can finish a save whose worker is dead, without torch: `outlast_jobs.finisher`.
Where it stands is said in `outlast_jobs.buffer_state`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from outlast_jobs.buffer_state import HEADER, MAGIC, NOTE_AT, NOTE_MOST, header_at
from outlast_jobs.contract import Schema
from outlast_jobs.direct import ALIGN
from outlast_jobs.errors import Corrupt, Malformed, UnknownSchema
from outlast_jobs.generation import META, GenerationName, Index, safe_member
from outlast_jobs.nans import KINDS
from outlast_jobs.safejson import parse_object

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Storage(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of a tensor in a file, and where their crc32 belongs."""

    start: _Count
    nbytes: _Count
    crc_at: tuple[_Count, _Count]
    kind: str = ""
    """The floating-point format where a NaN in it makes the state a sick one, else nothing."""


class File(msgspec.Struct, frozen=True):
    """A file that lies in the buffer as it will on disk, but for the checksums of its storages."""

    name: str
    start: _Count
    nbytes: _Count
    storages: tuple[Storage, ...] = ()


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Whose state it is, and what a generation of it needs."""

    schema: str = Schema.BUFFER
    generation: str
    began: float  # monotonic seconds
    files: tuple[File, ...]
    index: dict[str, Any]
    """The index, without its files."""


def encode_files(files: Sequence[File]) -> bytes:
    """The files as a note has them, to be kept from one note to the next."""
    return msgspec.json.encode(files)


def encode_note(note: Note, known: bytes) -> bytes:
    """The bytes of a note. ValueError for what JSON has no numbers for, and where it is too long.

    ``known`` are further files, from `encode_files`, which stand before those of the note.
    """
    # the index not by msgspec's encoder: that one writes NaN as null without a word
    index = msgspec.Raw(json.dumps(note.index, allow_nan=False, separators=(",", ":")).encode())
    told = {"schema": note.schema, "generation": note.generation, "began": note.began}
    lists = [text for text in (known, encode_files(note.files)) if text != b"[]"]
    files = msgspec.Raw(b"[" + b",".join(text[1:-1] for text in lists) + b"]")
    data = msgspec.json.encode({**told, "index": index, "files": files})
    if len(data) > NOTE_MOST:
        raise ValueError(f"a note of {len(data)} bytes is more than the {NOTE_MOST} that are read")
    return data


def read_note(fd: int) -> Note:
    """The note in a buffer of `sealed_size`. Corrupt where it is none, or does not fit the buffer."""
    size = os.fstat(fd).st_size
    magic, _, length = HEADER.unpack(os.pread(fd, HEADER.size, header_at(size)))
    if magic != MAGIC:
        raise UnknownSchema(f"the buffer begins with {magic!r}, not {MAGIC!r}")
    if length > NOTE_MOST:
        raise Malformed(f"the buffer's note is said to have {length} bytes, more than {NOTE_MOST}")
    return decode_note(os.pread(fd, length, header_at(size) + NOTE_AT), size)


def decode_note(data: bytes, size: int) -> Note:
    """The note in ``data``, of a buffer of that many bytes. It comes from a worker: anything may stand there."""
    tree = parse_object(data, what="the buffer's note", limit=NOTE_MOST)
    if tree.get("schema") != Schema.BUFFER:
        raise UnknownSchema(f"the buffer's note has schema {str(tree.get('schema'))[:100]!r}")
    try:
        note = msgspec.convert(tree, Note)
    except msgspec.ValidationError as error:
        raise Malformed(f"the buffer's note is none: {error}") from None
    names = [file.name for file in note.files]
    if META not in names or len(set(names)) != len(names):
        raise Corrupt(f"the buffer's note names no {META!r}, or a file twice")
    for file in note.files:
        safe_member(file.name)
        _check(file, size)
    return note


def index_of(note: Note, name: GenerationName, run_id: str) -> Index:
    """The index that the note holds. Corrupt where it is not this run's or of another generation."""
    try:
        index = msgspec.convert({**note.index, "files": {}}, Index)
    except msgspec.ValidationError as error:
        raise Malformed(f"the index in the buffer's note is none: {error}") from None
    if (index.run_id, index.attempt, index.step) != (run_id, name.attempt, name.step) or name.final:
        raise Corrupt(f"the buffer's note is of {note.generation!r}, its index of step {index.step}")
    if index.schema != Schema.GENERATION:
        raise UnknownSchema(f"the index in the buffer's note has schema {index.schema[:100]!r}")
    return index


def _check(file: File, size: int) -> None:
    if file.start % ALIGN or file.start + file.nbytes > size:
        raise Corrupt(f"the buffer's note has {file.name!r} where the buffer is not")
    end = 0
    for storage in file.storages:
        last = storage.start + storage.nbytes
        if storage.start < end or not all(last <= at <= file.nbytes - 4 for at in storage.crc_at):
            raise Corrupt(f"the buffer's note has storages of {file.name!r} that overlap, or leave it")
        if storage.kind and storage.kind not in KINDS:
            raise Corrupt(f"the buffer's note has numbers of an unknown format in {file.name!r}")
        end = last
