"""Load this checkpoint with nothing but torch 2.6 or newer; outlast, which wrote it, need not be installed.

As a program (python load.py) it verifies every file and prints what there is. In a script:

    from load import load
    model.load_state_dict(load()["model"])

Nothing is loaded before every file has the sha256 that index.json says, and only by the loader that runs no code.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import sys
import time
from typing import Any

import torch

TAG = "__outlast__"
_PIECE = 8 << 20
_FACTORIES: dict[str, Any] = {
    "None": None,
    **{kind.__name__: kind for kind in (int, float, bool, str, list, dict, set)},
}


class Damaged(ValueError):
    """A file is not the one that was exported. Export it again."""


def load(folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The state of each part by its name; load()["model"] is a plain state_dict.

    ``folder`` is the export, or the step-… folder in it; by default the one where this file lies.
    """
    parts: dict[str, Any] = load_state(folder)["parts"]
    return parts


def load_state(folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """All that was saved: parts, kinds, counters, losses, rng (the random streams) and extra."""
    version = torch.__version__.split("+")[0].split(".")[:2]
    if [int("".join(filter(str.isdigit, part)) or 0) for part in version] < [2, 6]:
        raise RuntimeError(f"torch {torch.__version__} is not safe with files of others; take 2.6 or newer")
    place = generation(folder)
    index = verify(place)
    meta = _read(place, index, "meta.pt")
    if meta.get("schema") != "outlast.meta/1":
        raise Damaged(f"meta.pt has schema {meta.get('schema')!r}, this file reads 'outlast.meta/1'")
    shards = [_read(place, index, name) for name in meta.pop("shards")]
    state: dict[str, Any] = _fill(meta, shards)
    return state


def verify(place: str) -> dict[str, Any]:
    """The content of index.json, if every file is the one that it says; else Damaged."""
    data = _bytes(place, "index.json")
    wanted = _bytes(place, "index.json.sha256").decode(errors="replace").split()[:1]
    if wanted != [hashlib.sha256(data).hexdigest()]:
        raise Damaged("index.json is not what index.json.sha256 says")
    index: dict[str, Any] = json.loads(data)
    if index.get("schema") != "outlast.generation/1":
        raise Damaged(
            f"index.json has schema {index.get('schema')!r}, this file reads 'outlast.generation/1'"
        )
    for name, entry in index["files"].items():
        if "/" in name or name.startswith("."):
            raise Damaged(f"index.json names {name!r}, which is no file of this folder")
        if _sha256(os.path.join(place, name)) != (entry["bytes"], entry["sha256"]):
            raise Damaged(f"{name} is not the file that index.json says")
    return index


def generation(folder: str | os.PathLike[str] | None = None) -> str:
    """The folder with index.json: ``folder`` itself, or the one in it."""
    place = os.fspath(folder) if folder is not None else os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(place, "index.json")):
        return place
    found = [name for name in os.listdir(place) if os.path.exists(os.path.join(place, name, "index.json"))]
    if len(found) != 1:
        raise FileNotFoundError(
            f"{place!r} holds {len(found)} folders with an index.json, and should hold one"
        )
    return os.path.join(place, found[0])


def describe(state: dict[str, Any]) -> dict[str, Any]:
    """Step, newest loss, and how many tensors with how many values are in each part and in everything."""
    losses = state["losses"]
    return {
        "step": state["counters"]["step"],
        "epoch": state["counters"]["epoch"],
        "loss": repr(losses[-1][1]) if losses else None,
        "parts": {name: _count(part) for name, part in state["parts"].items()},
        "tensors": _count(state)[0],
    }


def _read(place: str, index: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in index["files"]:
        raise Damaged(f"index.json does not name {name!r}")
    content: dict[str, Any] = torch.load(os.path.join(place, name), map_location="cpu", weights_only=True)
    return content


def _fill(value: Any, shards: list[dict[str, Any]]) -> Any:
    """Put the tensors back into the tree, and what the safe loader does not take as it is."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(_fill(item, shards) for item in value)
    if kind not in (dict, collections.OrderedDict):
        return value
    filled = kind((key, _fill(item, shards)) for key, item in value.items())
    if kind is collections.OrderedDict:  # a state_dict has the versions of its layers as an attribute
        vars(filled).update((name, _fill(item, shards)) for name, item in vars(value).items())
        return filled
    if TAG not in value:
        return filled
    return shards[value["shard"]][value["key"]] if value[TAG] == "tensor" else _rebuilt(filled)


def _rebuilt(value: dict[str, Any]) -> Any:
    tag = value[TAG]
    if tag in _REBUILD:
        return _REBUILD[tag](value)
    if not tag.startswith("numpy."):
        raise Damaged(f"meta.pt holds a value of the kind {tag!r}, which this file does not know")
    try:
        import numpy
    except ImportError:
        return value  # as it was saved; nothing else needs numpy
    dtype = numpy.dtype(value["dtype"])
    if tag == "numpy.dtype":
        return dtype
    if tag == "numpy.scalar":
        return numpy.frombuffer(value["value"], dtype=dtype)[0] if value["value"] else dtype.type()
    if not dtype.itemsize:
        return numpy.zeros(value["shape"], dtype)
    flat = numpy.frombuffer(value["data"].contiguous().numpy().tobytes(), dtype=dtype).copy()
    return flat.reshape(value["shape"], order=value["order"])


_REBUILD: dict[str, Any] = {
    "bytes": lambda value: b"",
    "bytearray": lambda value: bytearray(),
    "int": lambda value: int(value["hex"], 16),
    "range": lambda value: range(*value["args"]),
    "dict": lambda value: dict(value["items"]),
    "Counter": lambda value: collections.Counter(dict(value["items"])),
    "defaultdict": lambda value: collections.defaultdict(_FACTORIES[value["factory"]], value["items"]),
    "frozenset": lambda value: frozenset(value["items"]),
    "deque": lambda value: collections.deque(value["items"], value["maxlen"]),
}


def _count(value: Any) -> list[int]:
    """Tensors, and the values in them."""
    if isinstance(value, torch.Tensor):
        return [1, value.numel()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    counts = [_count(item) for item in items]
    return [sum(count[0] for count in counts), sum(count[1] for count in counts)]


def _sha256(path: str) -> tuple[int, str]:
    digest, total = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            total += len(piece)
    return total, digest.hexdigest()


def _bytes(place: str, name: str) -> bytes:
    with open(os.path.join(place, name), "rb") as file:
        return file.read()


def _main() -> None:
    place = generation(sys.argv[1] if len(sys.argv) > 1 else None)
    state = load_state(place)
    found = describe(state)
    index = json.loads(_bytes(place, "index.json"))
    saved = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(index["saved_at"]))
    print(f"step {found['step']}, epoch {found['epoch']}, loss {found['loss']}, saved {saved}")
    for name, (tensors, values) in found["parts"].items():
        what = "values" if state["kinds"].get(name) == "optimizer" else "parameters"
        print(f"{name}: {tensors} tensors, {values:,} {what}")
    print(f"verified: {len(index['files'])} files, {found['tensors']} tensors in all")


if __name__ == "__main__":
    try:
        _main()
    except (OSError, ValueError, RuntimeError) as problem:
        sys.exit(f"load.py: {problem}")
