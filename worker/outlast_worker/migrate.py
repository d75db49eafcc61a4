"""The formats of a checkpoint in a single file: which there are, and each older one brought to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast_jobs import migrations
from outlast_jobs.errors import Corrupt
from outlast_jobs.migrations import Migrations
from outlast_worker.digest import OPTIMIZER
from outlast_worker.parts import STATEFUL

V1 = "ckpt.v1"
"""What many scripts write by themselves: the state dicts, ``state``, ``rng`` and ``wall_saved_at``."""
V2 = "outlast.ckpt/2"
"""Any number of named parts, plain values of the script, and what must be the same at a resume."""

_SHAPE: dict[str, type | tuple[type, ...]] = {
    "parts": dict,
    "kinds": dict,
    "counters": dict,
    "losses": list,
    "rng": dict,
    "extra": dict,
    "fingerprint": dict,
    "code": dict,
    "data": dict,
    "saved_at": (int, float),
}


def to_current(payload: Any, name: str) -> dict[str, Any]:
    """A payload of any readable schema as the newest; ``name`` is that of its file, for errors."""
    if not isinstance(payload, dict):
        raise Corrupt(f"{name!r} holds no dict but {type(payload).__name__}")
    current = migrations.to_current(payload, V2, _MIGRATIONS, name)
    for key, kind in _SHAPE.items():
        if not isinstance(current.get(key), kind):
            raise Corrupt(f"{name!r} has no {key!r}")
    return current


def migrate_v1_to_v2(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The same checkpoint in the second format, sharing its tensors; ``payload`` stays as it is.

    The first one had the three parts in places of their own, the losses without their steps, and nothing
    about code, data and environment: what was not recorded is empty, and can't be held against anything.
    """
    if payload.get("schema") != V1:
        raise ValueError(f"the payload has schema {payload.get('schema')!r}, not {V1!r}")
    kinds = {"model": STATEFUL, "optimizer": OPTIMIZER, "scheduler": STATEFUL}
    try:
        state, rng = payload["state"], payload["rng"]
        losses = [float(loss) for loss in state["losses"]]
        counters = {key: state[key] for key in ("step", "epoch", "batch_in_epoch")}
        first = counters["step"] - len(losses) + 1
        parts = {part: payload[part] for part in kinds if payload[part] is not None}
        streams = {
            "python": rng["python"],
            "numpy": rng["numpy"],
            "torch": rng["torch_cpu"],
            "cuda": list(rng.get("torch_cuda") or []),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"a checkpoint of schema {V1!r} without what it must have: {error}") from error
    return {
        "schema": V2,
        "parts": parts,
        "kinds": {part: kind for part, kind in kinds.items() if part in parts},
        "counters": counters,
        "losses": [[first + n, loss] for n, loss in enumerate(losses)],
        "rng": streams,
        "extra": {},
        "fingerprint": {},
        "code": {},
        "data": {},
        "saved_at": payload.get("wall_saved_at", 0.0),
    }


_MIGRATIONS: Migrations = {V1: migrate_v1_to_v2}
