"""The library that a training script imports: its state saved and restored bit for bit, across kills."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast_worker.atomic import atomic_save as atomic_save
    from outlast_worker.atomic import atomic_write_json as atomic_write_json
    from outlast_worker.batches import batches as batches
    from outlast_worker.checkpointer import Checkpointer as Checkpointer
    from outlast_worker.demo import run_resume_demo as run_resume_demo
    from outlast_worker.digest import state_sha256 as state_sha256
    from outlast_worker.folder import CheckpointFolder as CheckpointFolder
    from outlast_worker.folder import Keep as Keep
    from outlast_worker.migrate import migrate_v1_to_v2 as migrate_v1_to_v2
    from outlast_worker.restoring import read_generation as read_generation
    from outlast_worker.rng import capture_rng_state as capture_rng_state
    from outlast_worker.rng import restore_rng_state as restore_rng_state
    from outlast_worker.sharded import load_sharded_checkpoint as load_sharded_checkpoint
    from outlast_worker.sharded import save_sharded_checkpoint as save_sharded_checkpoint
    from outlast_worker.single import load_checkpoint as load_checkpoint
    from outlast_worker.single import save_checkpoint as save_checkpoint
    from outlast_worker.trainstate import TrainState as TrainState

# Imported when first asked for: torch takes a second, and a tool that only looks has no use for it.
_HOMES = {
    "Checkpointer": "checkpointer",
    "batches": "batches",
    "capture_rng_state": "rng",
    "restore_rng_state": "rng",
    "state_sha256": "digest",
    "read_generation": "restoring",
    "TrainState": "trainstate",
    "save_checkpoint": "single",
    "load_checkpoint": "single",
    "save_sharded_checkpoint": "sharded",
    "load_sharded_checkpoint": "sharded",
    "atomic_save": "atomic",
    "atomic_write_json": "atomic",
    "migrate_v1_to_v2": "migrate",
    "CheckpointFolder": "folder",
    "Keep": "folder",
    "run_resume_demo": "demo",
}

__all__ = [
    "Checkpointer",
    "CheckpointFolder",
    "Keep",
    "TrainState",
    "atomic_save",
    "atomic_write_json",
    "batches",
    "capture_rng_state",
    "load_checkpoint",
    "load_sharded_checkpoint",
    "migrate_v1_to_v2",
    "read_generation",
    "restore_rng_state",
    "run_resume_demo",
    "save_checkpoint",
    "save_sharded_checkpoint",
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
