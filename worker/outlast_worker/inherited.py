"""What the attempt before has left in memory: a generation's files, if it is the one that is resumed from."""

from __future__ import annotations

import contextlib
import os
import re

from msgspec import Struct

from outlast_jobs.buffer_note import File, index_of, read_note
from outlast_jobs.buffer_state import State, sealed_size, state_of
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName

_ADDRESS = re.compile(r"([0-9]{1,9}):([0-9]{1,20})")


class Inherited(Struct):
    """The descriptor of a buffer, and the files in it. What they hold is believed only by the digests on disk."""

    fd: int
    generation: str
    files: dict[str, File]
    used: int = 0
    """Files that were read here."""
    refused: str = ""
    """Why what lies here was not used after all, if it looked as if it could be."""

    @classmethod
    def of(cls, address: str, run_id: str) -> Inherited | None:
        """What ``FD:INODE`` names, which is not passed on from here on; None where it is not there any more."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            return None
        fd = int(match[1])
        with contextlib.suppress(OSError):
            # whoever stood between the supervisor and us may have closed it, and have opened something else
            if os.fstat(fd).st_ino != int(match[2]) or not sealed_size(fd):
                return None
            os.set_inheritable(fd, False)
            return cls(fd, *_content(fd, run_id))
        return None

    def find(self, generation: str, member: str, nbytes: int) -> File | None:
        """A file of a generation that lies here, if it has that length."""
        file = self.files.get(member) if generation == self.generation else None
        return file if file is not None and file.nbytes == nbytes else None

    def open(self) -> int:
        """The memory as a file of its own position, to be read beside others."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)


def _content(fd: int, run_id: str) -> tuple[str, dict[str, File]]:
    if state_of(fd) is State.NONE:
        return "", {}
    with contextlib.suppress(IntegrityError):
        note = read_note(fd)
        name = GenerationName.parse(note.generation)
        if name is not None:
            index_of(note, name, run_id)  # of this run
            return str(name), {file.name: file for file in note.files}
    return "", {}
