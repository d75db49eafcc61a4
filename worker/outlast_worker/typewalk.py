"""Walk a state tree against the types that the safe loader gives back; convert the rest or refuse.

``torch.save`` takes far more than ``torch.load(weights_only=True)`` returns, so that a checkpoint can be
saved and never loaded again. What the loader refuses but can be rebuilt exactly (numpy's scalars and arrays,
frozensets, deques, ...) is stored as a dict with the key ``TAG``; the rest is an error that names its path.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from outlast_jobs.contract import Schema

TAG = "__outlast__"
MAX_DEPTH = 100  # pickle recurses in C; far above any real state, far below its limit

_ATOMS: frozenset[type] = frozenset(
    {
        type(None),
        bool,
        float,
        complex,
        str,
        bytes,
        bytearray,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.qscheme,
        torch.Size,
    }
)
_SCALARS: frozenset[type] = frozenset({type(None), bool, float, complex, str})
_PLAIN_KEYS: frozenset[type] = frozenset({type(None), bool, int, float, str, bytes})
_FACTORIES: dict[str, Callable[[], Any] | None] = {
    "None": None,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list": list,
    "dict": dict,
    "set": set,
}
_WORD = 1 << 63
_INT_BITS = 2000  # the safe loader reads integers of at most 255 bytes
_ARRAY_KINDS = "biufcSUMm"  # without objects, records and void
_TORCH_NUMERIC = frozenset(
    f"{order}{code}"
    for order in "|<"
    for code in ("b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
)
_OPEN = object()


class NotLoadable(ValueError):
    """A value would be saved but could not be loaded. Change what stands at ``path``, then save again."""

    def __init__(self, path: str, kind: str, why: str = "") -> None:
        self.path = path or "."
        self.kind = kind
        why = why or "saves but does not load again; keep numbers, text, lists, dicts or tensors there"
        super().__init__(f"{self.path}: {kind}: {why}")


def loadable(tree: Any, path: str = "") -> Any:
    """``tree`` in types that the safe loader gives back; ``original`` is the way back.

    Of a whole state the parts are named without their bucket: ``scheduler/...``, not ``parts/scheduler/...``.
    """
    walk = Conversion()
    if not path and type(tree) is dict and tree.get("schema") == Schema.META:
        return {key: walk.convert(item, "" if key == "parts" else key, 1) for key, item in tree.items()}
    return walk.convert(tree, path, 0)


def original(tree: Any) -> Any:
    """What ``loadable`` was given. Raises ValueError where a tag is not one that ``loadable`` writes."""
    return _Revival().revive(tree)


def kind_name(value: object) -> str:
    """The name under which a value's type is reported."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def join(path: str, key: object) -> str:
    """The path of an entry."""
    return f"{path}/{key}" if path else str(key)


def check_tensor(value: torch.Tensor, path: str) -> None:
    """Raise NotLoadable unless the tensor is a plain dense one, whose values a file can hold."""
    kind = kind_name(value)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        if torch.nn.parameter.is_lazy(value):
            raise NotLoadable(path, kind, "it has no shape yet; have the model see a batch before")
        raise NotLoadable(path, kind, "tensor subclasses are not saved; keep a plain tensor there")
    if value.is_nested:
        raise NotLoadable(path, kind, "nested tensors are not saved; keep their padded or listed form there")
    if value.layout is not torch.strided:
        raise NotLoadable(
            path, kind, f"the layout {value.layout} is not saved; keep indices and values there"
        )
    if value.is_quantized:
        raise NotLoadable(
            path, kind, "quantized tensors are not saved; keep int_repr(), scale and zero point there"
        )
    if value.is_meta:
        raise NotLoadable(path, kind, "it lies on the meta device and has no values")
    if value.numel() and value.untyped_storage().nbytes() < _reach(value):  # reading it would end the process
        raise NotLoadable(
            path, kind, "its storage was made too small for it (resize_), so that it has no values"
        )
    if not _has_copies(value.dtype):
        raise NotLoadable(
            path, kind, f"torch has no copies of {value.dtype}; keep its view(torch.uint8) there"
        )


def _reach(value: torch.Tensor) -> int:
    """Bytes of its storage up to its last element."""
    reach = value.numel()
    if not value.is_contiguous():
        reach = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return (int(value.storage_offset()) + reach) * value.element_size()


@functools.cache
def _has_copies(dtype: torch.dtype) -> bool:
    """Whether torch can copy elements of this type; of some it knows little more than the name."""
    try:
        torch.empty(4, dtype=dtype, device="cpu")[::2].clone()
    except (RuntimeError, NotImplementedError):
        return False
    return True


class Conversion:
    """The walk of one state; ``tensors`` counts those it has met."""

    def __init__(self) -> None:
        self.tensors = 0
        self._memo: dict[int, Any] = {}  # the same list twice stays the same list

    def convert(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in (bytes, bytearray) and not value:
            return {TAG: kind.__name__}  # empty ones are pickled as a call that the loader refuses
        if kind is bytearray:
            return bytearray(value)  # the only one that can change while it is saved
        if kind in _ATOMS:
            return value
        if kind is int:
            return value if value.bit_length() <= _INT_BITS else {TAG: "int", "hex": hex(value)}
        if isinstance(value, torch.Tensor):
            check_tensor(value, path)
            self.tensors += 1
            return value
        if isinstance(value, np.generic):
            return _scalar(value, path)
        if isinstance(value, np.ndarray):
            self.tensors += 1
            return self._once(value, lambda: _array(value, path), path)
        if isinstance(value, np.dtype):
            return {TAG: "numpy.dtype", "dtype": _dtype_name(value, path, kind_name(value))}
        if kind is range:
            return {TAG: "range", "args": (value.start, value.stop, value.step)}
        convert = self._CONTAINERS.get(kind)
        if convert is None:
            raise NotLoadable(path, kind_name(value))
        if depth >= MAX_DEPTH:
            raise NotLoadable(path, kind_name(value), f"nested deeper than {MAX_DEPTH} levels")
        return self._once(value, lambda: convert(self, value, path, depth + 1), path)

    def _once(self, value: Any, convert: Callable[[], Any], path: str) -> Any:
        done = self._memo.get(id(value))
        if done is _OPEN:
            raise NotLoadable(path, kind_name(value), "it contains itself")
        if done is None:
            self._memo[id(value)] = _OPEN
            done = self._memo[id(value)] = convert()
        return done

    def _items(self, value: Any, path: str, depth: int) -> list[Any]:
        if (kinds := set(map(type, value))) <= _SCALARS:
            return list(value)  # the losses, of which there is one for each step
        if kinds == {int} and min(value) >= -_WORD and max(value) < _WORD:
            return list(value)  # a generator's words, by the hundreds at each save
        return [self.convert(item, join(path, n), depth) for n, item in enumerate(value)]

    def _list(self, value: list[Any], path: str, depth: int) -> Any:
        return self._items(value, path, depth)

    def _tuple(self, value: tuple[Any, ...], path: str, depth: int) -> Any:
        return tuple(self._items(value, path, depth))

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        if all(_plain_key(key) for key in value) and TAG not in value:
            return {key: self.convert(item, join(path, key), depth) for key, item in value.items()}
        return {TAG: "dict", "items": self._pairs(value, path, depth)}

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        return [
            (self.convert(key, join(path, f"key {key!r}"), depth), self.convert(item, join(path, key), depth))
            for key, item in value.items()
        ]

    def _ordered(self, value: collections.OrderedDict[Any, Any], path: str, depth: int) -> Any:
        for key in value:
            if not _plain_key(key) or key == TAG:
                raise NotLoadable(join(path, key), kind_name(key), "not a key that loads in an OrderedDict")
        result = collections.OrderedDict(
            (key, self.convert(item, join(path, key), depth)) for key, item in value.items()
        )
        # a module's state dict carries the versions of its layers as an attribute, and loading needs them
        result.__dict__.update(
            {name: self.convert(item, join(path, name), depth) for name, item in vars(value).items()}
        )
        return result

    def _counter(self, value: collections.Counter[Any], path: str, depth: int) -> Any:
        return {TAG: "Counter", "items": self._pairs(value, path, depth)}

    def _defaultdict(self, value: collections.defaultdict[Any, Any], path: str, depth: int) -> Any:
        for name, factory in _FACTORIES.items():
            if factory is value.default_factory:
                return {TAG: "defaultdict", "factory": name, "items": self._pairs(value, path, depth)}
        raise NotLoadable(path, kind_name(value), "its default factory is not one of Python's own types")

    def _set(self, value: set[Any] | frozenset[Any], path: str, depth: int) -> Any:
        for item in value:
            if not _plain_key(item):
                raise NotLoadable(join(path, repr(item)), kind_name(item), "not a value that loads in a set")
        return {TAG: "frozenset", "items": list(value)} if isinstance(value, frozenset) else set(value)

    def _deque(self, value: collections.deque[Any], path: str, depth: int) -> Any:
        return {TAG: "deque", "maxlen": value.maxlen, "items": self._items(value, path, depth)}

    _CONTAINERS: dict[type, Callable[[Conversion, Any, str, int], Any]] = {  # noqa: RUF012 (a table, never changed)
        list: _list,
        tuple: _tuple,
        dict: _dict,
        collections.OrderedDict: _ordered,
        collections.Counter: _counter,
        collections.defaultdict: _defaultdict,
        collections.deque: _deque,
        set: _set,
        frozenset: _set,
    }


def _plain_key(key: object) -> bool:
    if type(key) is tuple:
        return all(_plain_key(item) for item in key)
    if type(key) is int:
        return key.bit_length() <= _INT_BITS
    return type(key) in _PLAIN_KEYS and key != b""


def _dtype_name(dtype: np.dtype[Any], path: str, kind: str) -> str:
    if dtype.kind not in _ARRAY_KINDS:
        raise NotLoadable(
            path, f"{kind} of {dtype}", "objects and records are not saved; keep plain values there"
        )
    if dtype.char in "gG":
        raise NotLoadable(
            path, kind, "long doubles are not saved, since they differ between machines; keep float64"
        )
    return dtype.str


def _scalar(value: np.generic, path: str) -> dict[str, Any]:
    kind = kind_name(value)
    if type(value) is not value.dtype.type:
        raise NotLoadable(path, kind)
    return {
        TAG: "numpy.scalar",
        "dtype": _dtype_name(value.dtype, path, kind),
        "value": value.tobytes() if value.dtype.itemsize else None,
    }


def _array(value: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
    kind = kind_name(value)
    if type(value) is not np.ndarray:
        raise NotLoadable(path, kind, "array subclasses are not saved; keep a plain array or a tensor there")
    name = _dtype_name(value.dtype, path, kind)
    # the order in memory decides the order of sums, so it belongs to the state
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    flat = np.array(value, order="K", copy=True).T if order == "F" else np.array(value, order="C", copy=True)
    flat = flat.reshape(-1)
    if name not in _TORCH_NUMERIC:
        flat = np.frombuffer(flat.tobytes(), dtype=np.uint8).copy()
    return {
        TAG: "numpy.ndarray",
        "dtype": name,
        "shape": value.shape,
        "order": order,
        "data": torch.from_numpy(flat),
    }


class _Revival:
    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}

    def revive(self, value: Any) -> Any:
        kind = type(value)
        if kind not in (list, tuple, dict, collections.OrderedDict):
            return value
        if id(value) not in self._memo:
            self._memo[id(value)] = self._container(value)
        return self._memo[id(value)]

    def _container(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.revive(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.revive(item) for item in value)
        if type(value) is dict and TAG in value:
            return self._tagged(value)
        result = type(value)((key, self.revive(item)) for key, item in value.items())
        if isinstance(value, collections.OrderedDict):
            result.__dict__.update({name: self.revive(item) for name, item in vars(value).items()})
        return result

    def _tagged(self, value: dict[str, Any]) -> Any:
        name = value[TAG]
        rebuild = self._REBUILD.get(name) if isinstance(name, str) else None
        if rebuild is None:
            raise ValueError(f"unknown tag {name!r}")
        try:
            return rebuild(self, value)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a {name} that can't be rebuilt: {type(error).__name__}: {error}") from None

    def _pairs(self, value: dict[str, Any]) -> list[tuple[Any, Any]]:
        return [(self.revive(key), self.revive(item)) for key, item in value["items"]]

    def _array(self, value: dict[str, Any]) -> np.ndarray[Any, Any]:
        dtype = np.dtype(value["dtype"])
        flat = value["data"].contiguous().numpy().copy()
        if flat.dtype != dtype:
            flat = (
                np.frombuffer(flat.tobytes(), dtype=dtype).copy()
                if dtype.itemsize
                else np.zeros(value["shape"], dtype)
            )
        array: np.ndarray[Any, Any] = flat.reshape(value["shape"], order=value["order"])
        return array

    def _scalar(self, value: dict[str, Any]) -> np.generic:
        dtype = np.dtype(value["dtype"])
        scalar = np.frombuffer(value["value"], dtype=dtype)[0] if value["value"] else dtype.type()
        if not isinstance(scalar, np.generic):
            raise ValueError(f"{dtype} is not the type of a scalar")
        return scalar

    _REBUILD: dict[str, Callable[[_Revival, dict[str, Any]], Any]] = {  # noqa: RUF012 (a table, never changed)
        "bytes": lambda self, value: b"",
        "bytearray": lambda self, value: bytearray(),
        "int": lambda self, value: int(value["hex"], 16),
        "range": lambda self, value: range(*value["args"]),
        "dict": lambda self, value: dict(self._pairs(value)),
        "Counter": lambda self, value: collections.Counter(dict(self._pairs(value))),
        "defaultdict": lambda self, value: collections.defaultdict(
            _FACTORIES[value["factory"]], self._pairs(value)
        ),
        "frozenset": lambda self, value: frozenset(value["items"]),
        "deque": lambda self, value: collections.deque(self._items(value), value["maxlen"]),
        "numpy.dtype": lambda self, value: np.dtype(value["dtype"]),
        "numpy.scalar": _scalar,
        "numpy.ndarray": _array,
    }

    def _items(self, value: dict[str, Any]) -> list[Any]:
        return [self.revive(item) for item in value["items"]]
