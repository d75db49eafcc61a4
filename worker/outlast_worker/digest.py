"""Digest and compare state trees by value: equal state, equal digest, wherever and however it was saved.

The digest is the sha256 over one record for each node of the tree, depth first, the entries of a mapping
sorted by their encoded keys. A record is three frames (path, tag, payload); a frame is the length in eight
bytes, little-endian, and then the bytes. Tags tell int from float from bool; floats count by their bits;
tensors as contiguous little-endian logical values with dtype and shape, without stride, device or sharing.
The state of an optimizer goes by the names of its parameters and not by their numbers.
"""

from __future__ import annotations

import collections
import ctypes
import hashlib
import itertools
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from outlast_jobs.contract import Schema
from outlast_worker.typewalk import NotLoadable, check_tensor, kind_name

OPTIMIZER = "optimizer"
"""The kind of a part whose tree is an optimizer's, with the parameters' names beside it under ``NAMES``."""
NAMES = "names"

_BUCKETS = ("parts", "counters", "losses", "rng", "extra")


def state_sha256(state: Any) -> str:
    """The digest of a whole state (what Checkpointer saves), or of any other tree of loadable values.

    Of a state only the five buckets and ``extra`` count; schema and kinds say how, not what.
    """
    digest = hashlib.sha256()
    for leaf in leaves(canonical(state)):
        for frame in (b"".join(map(_frame, leaf.path)), leaf.tag.encode()):
            digest.update(struct.pack("<Q", len(frame)))
            digest.update(frame)
        payload = leaf.payload
        view = memoryview(payload) if isinstance(payload, bytes) else bytes_of(payload)
        digest.update(struct.pack("<Q", view.nbytes))
        if view.nbytes:
            digest.update(view)
    return digest.hexdigest()


def first_difference(old: Any, new: Any) -> str | None:
    """The first place, in canonical order, where two trees differ and how; None where they are equal."""
    for before, after in itertools.zip_longest(leaves(canonical(old)), leaves(canonical(new))):
        if before is None or after is None or before.path != after.path:
            leaf = min((leaf for leaf in (before, after) if leaf is not None), key=lambda leaf: leaf.path)
            return f"{leaf.shown}: only {'the first' if leaf is before else 'the second'} has it"
        if before.tag != after.tag:
            return f"{before.shown}: {before.tag} became {after.tag}"
        if before.tag in ("map", "list", "tuple"):
            continue  # which entry one of them lacks says more than how many they have
        if not _same(before.payload, after.payload):
            return f"{before.shown}: the values of {before.tag} differ"
    return None


def canonical(state: Any) -> Any:
    """What of a state counts, with optimizers by the names of their parameters; other trees as they are."""
    if not isinstance(state, dict) or state.get("schema") != Schema.META:
        return state
    kinds: Mapping[str, str] = state.get("kinds", {})
    result = {name: state[name] for name in _BUCKETS if name in state}
    result["parts"] = {
        name: by_name(tree) if kinds.get(name) == OPTIMIZER else tree for name, tree in state["parts"].items()
    }
    return result


def by_name(tree: Any) -> Any:
    """An optimizer's tree with the names of parameters in the place of their numbers."""
    if not isinstance(tree, dict) or NAMES not in tree:
        return tree
    names = list(tree[NAMES])

    def name(number: Any) -> Any:
        known = type(number) is int and 0 <= number < len(names) and names[number] is not None
        return names[number] if known else number

    result = {key: item for key, item in tree.items() if key != NAMES}
    result["state"] = {name(number): item for number, item in tree["state"].items()}
    result["param_groups"] = [
        {**group, "params": [name(number) for number in group["params"]]} for group in tree["param_groups"]
    ]
    return result


class Leaf(NamedTuple):
    """One record of the digest."""

    path: tuple[bytes, ...]
    shown: str
    tag: str
    payload: bytes | torch.Tensor  # a tensor is flat and of bytes


def leaves(value: Any, path: tuple[bytes, ...] = (), shown: str = "") -> Iterator[Leaf]:
    """The records of a tree, in canonical order."""
    tag, payload = _own(value, shown)
    yield Leaf(path, shown or ".", tag, payload)
    entries: list[tuple[bytes, Any, Any]] = []
    if isinstance(value, dict):
        entries = sorted(((_key(key, shown), key, item) for key, item in value.items()), key=lambda e: e[0])
    elif isinstance(value, list | tuple | collections.deque) and not isinstance(value, torch.Size):
        entries = [(_key(number, shown), number, item) for number, item in enumerate(value)]
    for piece, key, item in entries:
        yield from leaves(item, (*path, piece), f"{shown}/{key}" if shown else str(key))


def _own(value: Any, shown: str) -> tuple[str, bytes | torch.Tensor]:
    kind = type(value)
    atom = _ATOMS.get(kind)
    if atom is not None:
        encode, tag = atom
        return tag, encode(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value, shown)
    if isinstance(value, np.generic):
        return f"numpy {value.dtype.str}", _little(np.asarray(value)).tobytes()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise NotLoadable(shown, kind_name(value))
        return f"array {value.dtype.newbyteorder('<').str} {list(value.shape)}", _little(value).tobytes()
    if isinstance(value, dict):
        return "map", str(len(value)).encode()
    if isinstance(value, set | frozenset):
        return "set", b"".join(sorted(_frame(_key(item, shown)) for item in value))
    if isinstance(value, collections.deque):
        return f"deque {value.maxlen}", str(len(value)).encode()
    if kind in (list, tuple):
        return kind.__name__, str(len(value)).encode()
    if isinstance(value, np.dtype):
        return "numpy dtype", value.str.encode()
    raise NotLoadable(shown, kind_name(value), "it has no digest")


def _tensor(value: torch.Tensor, shown: str) -> tuple[str, torch.Tensor]:
    check_tensor(value, shown)
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    size = flat.element_size()
    data = flat.view(torch.uint8)
    if sys.byteorder == "big" and size > 1:
        size //= 2 if value.is_complex() else 1
        data = data.view(-1, size).flip(1).reshape(-1)
    return f"tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}", data


def _little(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return value.astype(value.dtype.newbyteorder("<"), copy=False)


def bytes_of(flat: torch.Tensor) -> memoryview:
    """The memory of a flat tensor of bytes, on the CPU; it is to outlive this.

    A numpy array over it would do, but from then on torch refuses to resize that memory, which may be the training's.
    """
    return memoryview((ctypes.c_char * flat.numel()).from_address(flat.data_ptr())).cast("B")


def _frame(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _text(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


_ATOMS: dict[type, tuple[Any, str]] = {
    type(None): (lambda value: b"", "none"),
    bool: (lambda value: b"\1" if value else b"\0", "bool"),
    int: (lambda value: hex(value).encode(), "int"),
    float: (_bits, "float"),
    complex: (lambda value: _bits(value.real) + _bits(value.imag), "complex"),
    str: (_text, "str"),
    bytes: (lambda value: value, "bytes"),
    bytearray: (bytes, "bytearray"),
    range: (_text, "range"),
    torch.Size: (lambda value: _text(list(value)), "size"),
    torch.dtype: (_text, "dtype"),
    torch.device: (_text, "device"),
    torch.layout: (_text, "layout"),
    torch.qscheme: (_text, "qscheme"),
}


def _key(key: Any, shown: str) -> bytes:
    if isinstance(key, np.generic):
        return f"numpy {key.dtype.str} ".encode() + key.tobytes()
    if type(key) is tuple:
        return b"tuple " + b"".join(_frame(_key(item, shown)) for item in key)
    if type(key) is frozenset:
        return b"set " + b"".join(sorted(_frame(_key(item, shown)) for item in key))
    atom = _ATOMS.get(type(key))
    if atom is None:
        raise NotLoadable(f"{shown}/{key!r}", kind_name(key), "not a key that has a digest")
    encode, tag = atom
    encoded: bytes = encode(key)
    return tag.encode() + b" " + encoded


def _same(old: bytes | torch.Tensor, new: bytes | torch.Tensor) -> bool:
    if isinstance(old, bytes) or isinstance(new, bytes):
        return isinstance(old, bytes) and isinstance(new, bytes) and old == new
    whole = min(old.numel(), new.numel()) // 8 * 8
    if all(flat.dtype is torch.uint8 and flat.storage_offset() % 8 == 0 for flat in (old, new)):
        # eight at a time: four times as fast, and a restore compares all that it has put into a model
        if not torch.equal(old[:whole].view(torch.int64), new[:whole].view(torch.int64)):
            return False
        old, new = old[whole:], new[whole:]
    return torch.equal(old, new)
