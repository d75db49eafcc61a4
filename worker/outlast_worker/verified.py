"""The bytes of a ``.pt`` file that were verified, given to torch's safe loader without a second copy of them.

The loader reads each record into memory of its own. It is told that a large one was read, and what it has made is then
given the memory in which the record already lies.
"""

from __future__ import annotations

import bisect
import sys
from typing import IO, Any, cast

import torch
from msgspec import Struct

from outlast_worker.ptfile import InMemory, require_safe_loader


class Verified(Struct):
    """A file whose bytes are in memory and match the index. ``content`` gives what it holds, once."""

    size: int
    _starts: list[int] = []  # of the parts, in order and without gaps
    _parts: list[memoryview] = []
    _storages: dict[int, torch.UntypedStorage] = {}  # by their place in the file

    def content(self) -> Any:
        """What the file holds, through the loader that runs no code; whatever that raises is raised."""
        require_safe_loader()
        source = _Source(self)
        try:
            content = _load(source)
            if not source.lent or self._rebind(content, source.lent):
                return content
        except Exception:
            # a loader may look at the bytes (torch holds a sparse tensor's indices against its size)
            if not source.lent:
                raise
        return _load(_Source(self, lend=False))

    def add(self, at: int, part: memoryview, storage: torch.UntypedStorage | None = None) -> None:
        """The next bytes of the file; ``storage`` is the memory of a whole record."""
        self._starts.append(at)
        self._parts.append(part)
        if storage is not None:
            self._storages[at] = storage

    def is_record(self, at: int, size: int) -> bool:
        """Whether a whole record lies there in memory of its own."""
        return at in self._storages and self._storages[at].nbytes() == size

    def copy(self, at: int, into: memoryview) -> int:
        """Bytes of the file, from wherever they are."""
        done, number = 0, bisect.bisect_right(self._starts, at) - 1
        while done < len(into) and 0 <= number < len(self._parts):
            skip = at + done - self._starts[number]
            piece = self._parts[number][skip : skip + len(into) - done]
            into[done : done + len(piece)] = piece
            done += len(piece)
            number += 1
        return done

    def _rebind(self, content: Any, lent: dict[int, int]) -> bool:
        """Give the tensors the memory that was read into; False where one could be overlooked."""
        if type(content) is not dict or not all(_is_plain(value) for value in content.values()):
            return False
        tensors = list(content.values())
        if not lent.keys() <= {tensor.untyped_storage().data_ptr() for tensor in tensors}:
            return False
        with torch.no_grad():
            for tensor in tensors:
                at = lent.get(tensor.untyped_storage().data_ptr())
                if at is not None:
                    tensor.set_(self._storages[at], tensor.storage_offset(), tensor.shape, tensor.stride())
        return True


def _load(source: _Source) -> Any:
    return torch.load(cast(IO[bytes], source), map_location="cpu", weights_only=True, mmap=False)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor that holds nothing but its one storage."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_conj() or value.is_neg() or value.requires_grad)
        and not vars(value)
    )


class _Source(InMemory):
    """The verified bytes as a file. Of a record that has its own memory the place is noted, not the bytes.

    The loader asks for each record's bytes in one read, into memory that it got for them and that nobody has
    touched. That memory is told apart by its address, and replaced once the loader is done.
    """

    def __init__(self, verified: Verified, *, lend: bool = True) -> None:
        super().__init__(verified.size)
        self._verified = verified
        self._lend = lend and sys.byteorder == "little"  # else the loader turns what it has read around
        self.lent: dict[int, int] = {}  # address -> place in the file

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        where = torch.frombuffer(view, dtype=torch.uint8).data_ptr() if len(view) else 0
        if self._lend and self._verified.is_record(self._at, len(view)):
            self.lent[where] = self._at
            got = len(view)
        else:
            self.lent.pop(where, None)  # what was lent there is gone, and its memory was dealt anew
            got = self._verified.copy(self._at, view)
        self._at += got
        return got
