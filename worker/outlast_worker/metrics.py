"""One line a step in the attempt's metrics file: what is compared when steps are trained again."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast_jobs.beneath import open_append
from outlast_jobs.contract import Schema

RESERVED = frozenset(
    {"step", "loss", "lr", "t", "rng", "epoch", "batch", "ids", "schema", "attempt", "proof", "start"}
)
"""Keys of a line that a script's own fields may not take."""


class MetricsWriter:
    """Appends whole lines by single writes. A failing disk costs lines, never the training."""

    def __init__(self, path: Path, attempt: int, restored_step: int, restored: str | None) -> None:
        self.failures = 0
        """Lines that could not be written."""
        self._fd: int | None = None
        self._torn = False
        try:
            self._fd = open_append(path.parent.parent, path)
        except OSError:
            self.failures += 1
        header = {
            "schema": Schema.METRICS,
            "attempt": attempt,
            "restored_step": restored_step,
            "restored": restored,
        }
        self.line(header)

    def line(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        if self._fd is None:
            self.failures += 1
            return
        data = encode(record)
        if self._torn:  # so that the half line before is damage of its own and not of this one
            data = b"\n" + data
        try:
            self._torn = os.write(self._fd, data) != len(data)
        except OSError:
            self.failures += 1
        else:
            self.failures += self._torn

    def sync(self) -> None:
        """Make the lines durable: no generation may be sealed whose steps the history lacks."""
        if self._fd is not None:
            try:
                os.fdatasync(self._fd)
            except OSError:
                self.failures += 1

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def encode(record: Mapping[str, Any]) -> bytes:
    """One line of JSON. Floats read back bit for bit; NaN and infinities are strings."""
    return json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | bool) or value is None:
        return value
    item = getattr(value, "item", None)
    return _plain(item()) if callable(item) else str(value)


def ids_digest(ids: list[int]) -> str:
    """What stands for the samples of a step where they are not recorded themselves."""
    return hashlib.blake2b(",".join(map(str, ids)).encode(), digest_size=8).hexdigest()
