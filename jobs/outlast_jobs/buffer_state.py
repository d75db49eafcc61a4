"""How far the copy of a state in a buffer is, told by its header: one byte, which whoever has the memory can read.

A buffer is memory with a descriptor, which a worker copies its state into and shares with its supervisor. First lie
the images of the files, each on whole pages. `ROOM` bytes before the end begin the header, the note of what lies there
(`outlast_jobs.buffer_note`), and `meta.pt`.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import struct

from outlast_jobs.contract import Schema
from outlast_jobs.direct import ALIGN

NOTE_AT = ALIGN
"""Where the note begins, from the header on."""
NOTE_MOST = 4 << 20
META_AT = NOTE_AT + NOTE_MOST
"""Where `meta.pt` begins, from the header on."""
ROOM = 32 << 20
"""Bytes behind the images, of which the system gives only what is written to."""
STATE_AT = 16
"""Where the byte that says how far the copy is stands in the header."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""Without these a reader could be ended by SIGBUS, where a worker cuts the memory under it."""
MAGIC = Schema.BUFFER.encode()
HEADER = struct.Struct("<16sB7xQ")  # the schema, the state, and the bytes of the note


class State(enum.IntEnum):
    """How far the copy in a buffer is. One byte: whoever reads it finds one or the other."""

    NONE = 0  # nothing of use, or a copy under way
    COPIED = 1  # whole and known to be right, and perhaps not sealed
    SEALED = 2  # and a generation holds the same bytes


def whole(images: int) -> int:
    """The bytes of a buffer whose images take so many."""
    return -(-images // ALIGN) * ALIGN + ROOM


def header_at(size: int) -> int:
    """Where the header of a buffer of this size stands: behind the images. Negative where it is none."""
    return size - ROOM


def sealed_size(fd: int) -> int:
    """The bytes of the memory behind a descriptor that can't change its size any more; 0 for anything else.

    It waits for nothing, whatever the descriptor is of.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            return 0
        size = os.fstat(fd).st_size
    except OSError:
        return 0
    return size if header_at(size) >= 0 and size % ALIGN == 0 else 0


def state_of(fd: int) -> State:
    """How far the copy in this buffer is; NONE where it can't be told. The descriptor is of `sealed_size`."""
    with contextlib.suppress(OSError, ValueError, struct.error):
        found = os.pread(fd, HEADER.size, header_at(os.fstat(fd).st_size))
        magic, state, _ = HEADER.unpack(found)
        if magic == MAGIC:
            return State(state)
    return State.NONE


def header(note_bytes: int) -> bytes:
    """A header that says nothing of a copy yet."""
    return HEADER.pack(MAGIC, State.NONE, note_bytes)
