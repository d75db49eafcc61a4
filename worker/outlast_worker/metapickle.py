"""The pickler by which ``torch.save`` writes a state whose tensors are taken out, but for a few; its ``pickle_module``.

torch asks of each single object whether it is the memory of a tensor. For a state without them that is a call of
Python for each of thousands of numbers and names, in a thread that keeps the training from running meanwhile. So
only what holds tensors goes that way, and all else through the pickler of C alone. What comes out is one pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

_PROTOCOL = 2
_HEAD = 2  # bytes of the opcode that names the protocol, at the beginning of what one call writes
_SET_ITEM = b"s"
_STOP = b"."


class Pickler(pickle.Pickler):
    """As `pickle.Pickler`, of which torch makes a subclass with its ``persistent_id``."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        super().__init__(file, protocol=protocol)
        self._file = file
        self._protocol = protocol

    def dump(self, obj: Any) -> None:
        """A dict; its entries that are dicts may hold tensors, or lists of them. Anything else is as slow as ever."""
        try:
            data = self._parts(obj)
        except _Unfit:
            super().dump(obj)
        else:
            self._file.write(data)

    def _parts(self, obj: Any) -> bytes:
        if type(obj) is not dict or self._protocol != _PROTOCOL:
            raise _Unfit
        mixed = {
            key: value
            for key, value in obj.items()
            if type(value) is dict and any(map(_holds_tensor, value.values()))
        }
        out = io.BytesIO()
        plain = _Plain(out, _PROTOCOL)
        head = _body(plain, out, {key: value for key, value in obj.items() if key not in mixed})
        boxes = [
            (key, _body(plain, out, key), _body(plain, out, _without_tensors(value)))
            for key, value in mixed.items()
        ]
        # what follows may refer to what was written, and is numbered after it
        asked = pickle.Pickler(out, _PROTOCOL)
        asked.memo = plain.memo
        asked.persistent_id = self.persistent_id  # type: ignore[method-assign]
        pieces = [bytes((0x80, _PROTOCOL)), head]
        for key, name, box in boxes:
            pieces += [name, box]
            for inner, value in mixed[key].items():
                if _holds_tensor(value):
                    pieces += [_body(asked, out, inner), _body(asked, out, value), _SET_ITEM]
            pieces.append(_SET_ITEM)
        return b"".join([*pieces, _STOP])


class _Unfit(Exception):
    """It has to be written as torch does it."""


class _Plain(pickle.Pickler):
    """Without tensors: their memory would be pickled along, in a way that no safe loader reads."""

    def reducer_override(self, obj: Any) -> Any:
        """Called for what is of no type of Python's own."""
        if isinstance(obj, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
            raise _Unfit
        return NotImplemented


def _body(pickler: pickle.Pickler, out: io.BytesIO, value: Any) -> bytes:
    """What pushes the value onto the stack of whoever reads it, and nothing else."""
    out.seek(0)
    out.truncate()
    pickler.dump(value)
    return out.getvalue()[_HEAD : -len(_STOP)]


def _holds_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        type(value) is list and any(isinstance(item, torch.Tensor) for item in value)
    )


def _without_tensors(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: item for key, item in value.items() if not _holds_tensor(item)}


__all__ = ["Pickler"]
