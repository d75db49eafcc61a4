"""What data and code say of themselves, as an index holds it: in JSON's own values, the same for the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def recorded(value: Any) -> Any:
    """The value, or its text where JSON has none like it; tuples are lists, sets sorted ones, keys texts."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_text(key): recorded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [recorded(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(recorded, value), key=repr)
    return _text(value)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()
