"""The library that a training script imports: its state saved and restored bit for bit, across kills."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast_worker.batches import batches as batches
    from outlast_worker.checkpointer import Checkpointer as Checkpointer
    from outlast_worker.digest import state_sha256 as state_sha256
    from outlast_worker.restoring import read_generation as read_generation
    from outlast_worker.rng import capture_rng_state as capture_rng_state
    from outlast_worker.rng import restore_rng_state as restore_rng_state

# Imported when first asked for: torch takes a second, and a tool that only looks has no use for it.
_HOMES = {
    "Checkpointer": "checkpointer",
    "batches": "batches",
    "capture_rng_state": "rng",
    "restore_rng_state": "rng",
    "state_sha256": "digest",
    "read_generation": "restoring",
}

__all__ = [
    "Checkpointer",
    "batches",
    "capture_rng_state",
    "read_generation",
    "restore_rng_state",
    "state_sha256",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """A package whose function ``batches`` is not hidden by the module of that name once that is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
