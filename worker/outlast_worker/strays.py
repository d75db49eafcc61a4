"""What a script holds that has a state and was never registered: found by its variables, for a proof run."""

from __future__ import annotations

import functools
import random
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

_DEPTH = 5
_ENTRIES = 200
"""Entries of a container that are looked at; longer ones are data."""
_LIMIT = 20_000
"""Objects looked at in one search."""

_KINDS: tuple[tuple[type, str], ...] = (
    (torch.optim.Optimizer, "optimizer"),
    (torch.optim.lr_scheduler.LRScheduler, "scheduler"),
    (torch.nn.Module, "module"),
    (np.random.Generator, "numpy.Generator"),
    (np.random.RandomState, "numpy.RandomState"),
    (random.Random, "random.Random"),
    (torch.Generator, "torch.Generator"),
)
_FOREIGN = tuple(
    {
        str(Path(path).resolve())
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(key))
    }
    | {str(Path(__file__).resolve().parent)}
)


@dataclass(frozen=True)
class Stray:
    """One such thing: the name of the variable that holds it, what it is, and itself."""

    name: str
    kind: str
    value: Any

    @property
    def shown(self) -> str:
        kind = "dict of tensors" if self.kind == "tensors" else type(self.value).__name__
        return f"{self.name} ({kind})"


def find(registered: Mapping[str, Any], ours: Iterable[Any] = ()) -> list[Stray]:
    """Everything stateful within reach of the script's variables that is no part and inside no part.

    ``ours`` are further objects of the library that are not looked into.
    """
    search = _Search(registered, ours)
    for frame in _script_frames():
        for name, value in list(frame.f_locals.items()):
            search.visit(value, name, 0)
    main = sys.modules.get("__main__")
    for name, value in list(vars(main).items()) if main is not None else []:
        search.visit(value, name, 0)
    return search.found


def _script_frames() -> Iterator[types.FrameType]:
    """The frames of the script above us, from the innermost."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_script(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@functools.cache
def _is_script(file: str) -> bool:
    """Whether a source file is the script, lies beside it, or at least in no library."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and path.is_relative_to(Path(main).resolve().parent):
        return not path.is_relative_to(Path(__file__).resolve().parent)
    return not str(path).startswith(_FOREIGN)


def _of_script(kind: type) -> bool:
    """Whether a class is the script's own, so that its instances are looked into."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is not None and _is_script(file)


@dataclass
class _Search:
    registered: Mapping[str, Any]
    ours: Iterable[Any]
    found: list[Stray] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = list(self.registered.values())
        self._seen = {id(value) for value in (*parts, *self.ours)}
        self._tensors: set[int] = set()
        self._names: set[str] = set()
        for value in parts:
            if isinstance(value, torch.nn.Module):
                self._seen.update(id(module) for module in value.modules())
                self._tensors.update(id(tensor) for tensor in _tensors_of(value))
                self._names.update(name for name, _ in (*value.named_parameters(), *value.named_buffers()))

    def visit(self, value: Any, name: str, depth: int) -> None:
        if depth > _DEPTH or id(value) in self._seen or len(self._seen) > _LIMIT:
            return
        if isinstance(value, type | types.ModuleType | str | bytes | int | float | torch.Tensor | np.ndarray):
            return
        if name.startswith("__"):
            return
        self._seen.add(id(value))
        kind = self._kind(value)
        if kind is not None:
            if kind == "module":
                self._seen.update(id(module) for module in value.modules())
            self.found.append(Stray(name, kind, value))
            return
        for inner, label in _inside(value, name):
            self.visit(inner, label, depth + 1)

    def _kind(self, value: Any) -> str | None:
        if isinstance(value, random.SystemRandom):
            return None
        for cls, kind in _KINDS:
            if isinstance(value, cls):
                own = not isinstance(value, torch.nn.Module) or self._has_own_tensors(value)
                return kind if own else None
        if isinstance(value, dict):
            return "tensors" if self._like_parameters(value) else None
        stateful = all(callable(getattr(value, m, None)) for m in ("state_dict", "load_state_dict"))
        return "stateful" if stateful else None

    def _has_own_tensors(self, module: torch.nn.Module) -> bool:
        """Wrappers around a registered module have none, and losses without weights neither."""
        return any(id(tensor) not in self._tensors for tensor in _tensors_of(module))

    def _like_parameters(self, value: dict[Any, Any]) -> bool:
        """An average of the weights that is kept by hand: a dict of tensors by the parameters' names."""
        if not value or not self._names.issuperset(key for key in value if isinstance(key, str)):
            return False
        return all(
            isinstance(key, str) and isinstance(item, torch.Tensor) and id(item) not in self._tensors
            for key, item in value.items()
        )


def _inside(value: Any, name: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, dict):
        if len(value) <= _ENTRIES:
            yield from ((item, f"{name}[{key!r}]") for key, item in list(value.items()))
    elif isinstance(value, list | tuple):
        if len(value) <= _ENTRIES:
            yield from ((item, f"{name}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, types.FunctionType):
        for label, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield cell.cell_contents, label
            except ValueError:  # not filled yet
                continue
    elif isinstance(value, types.MethodType):
        yield value.__self__, name
    elif _of_script(type(value)) and hasattr(value, "__dict__"):
        yield from ((item, f"{name}.{key}") for key, item in list(vars(value).items()))


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
