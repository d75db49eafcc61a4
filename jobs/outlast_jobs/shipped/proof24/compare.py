"""Hold two trees of results against each other, number by number; nothing odd is waved through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

ABSOLUTE = 1e-12
"""The tolerance; the relative one is 0."""


@dataclass(frozen=True)
class Difference:
    """One place where two trees are not the same: how far apart, or what is wrong there instead."""

    path: str
    kind: str  # "value", "not finite", "structure"
    size: float | None  # None where it has none
    what: str

    @property
    def tolerable(self) -> bool:
        """Whether it is a number within the tolerance."""
        return self.size is not None and self.size <= ABSOLUTE

    def plain(self) -> dict[str, Any]:
        """For the report."""
        return {"path": self.path, "kind": self.kind, "size": self.size, "what": self.what}


@dataclass(frozen=True)
class Aspect:
    """The outcome for one of the things compared."""

    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Everything there is within the tolerance."""
        return all(difference.tolerable for difference in self.differences)

    @property
    def largest(self) -> float | None:
        """The largest difference; None where something can't be measured."""
        sizes = [difference.size for difference in self.differences]
        return None if None in sizes else max((size for size in sizes if size is not None), default=0.0)

    def plain(self) -> dict[str, Any]:
        """For the report."""
        return {
            "passed": self.passed,
            "largest_difference": self.largest,
            "differences": [difference.plain() for difference in self.differences],
        }


def compare(expected: Any, found: Any, path: str = "") -> Aspect:
    """All differences of two trees, those within the tolerance too."""
    return Aspect(tuple(_differences(expected, found, path)))


def _differences(old: Any, new: Any, path: str) -> Iterator[Difference]:
    if type(old) is not type(new):
        yield _structure(path, f"{type(old).__name__} and {type(new).__name__}")
    elif isinstance(old, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path}/{key}" if path else str(key)
            if key not in old or key not in new:
                yield _structure(where, f"only the {'first' if key in old else 'second'} has it")
            else:
                yield from _differences(old[key], new[key], where)
    elif isinstance(old, list | tuple):
        if len(old) != len(new):
            yield _structure(path, f"{len(old)} and {len(new)} entries")
        for number, (before, now) in enumerate(zip(old, new, strict=False)):
            yield from _differences(before, now, f"{path}/{number}" if path else str(number))
    elif isinstance(old, torch.Tensor):
        yield from _tensors(old, new, path)
    elif isinstance(old, np.ndarray):
        yield from _tensors(torch.from_numpy(old), torch.from_numpy(new), path)
    elif isinstance(old, float):
        yield from _tensors(
            torch.tensor(old, dtype=torch.float64), torch.tensor(new, dtype=torch.float64), path
        )
    elif old != new:
        size = float(abs(old - new)) if type(old) is int else None
        yield Difference(path, "value", size, f"{_short(old)} and {_short(new)}")
    elif old in ("nan", "inf", "-inf"):  # as a summary writes what JSON does not have
        yield Difference(path, "not finite", None, f"both {old}")


def _tensors(old: torch.Tensor, new: torch.Tensor, path: str) -> Iterator[Difference]:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        yield _structure(path, f"{old.dtype} {list(old.shape)} and {new.dtype} {list(new.shape)}")
        return
    if old.is_floating_point() and not bool(torch.isfinite(old).all() & torch.isfinite(new).all()):
        yield Difference(path, "not finite", None, f"{_short(old.tolist())} and {_short(new.tolist())}")
        return
    if not torch.equal(old, new):
        size = float((old.double() - new.double()).abs().max())
        # an integer that differs is never within the tolerance, and its distance says so
        yield Difference(path, "value", size, f"{_short(old.tolist())} and {_short(new.tolist())}")


def _structure(path: str, what: str) -> Difference:
    return Difference(path, "structure", None, what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def finite(value: float | None) -> bool:
    """Whether a measured difference is a number at all."""
    return value is not None and math.isfinite(value)
