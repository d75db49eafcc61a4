"""What a record of the journal says under a key, where it is of the type that it has to be; None where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(data: Mapping[str, Any], key: str) -> str | None:
    """A text."""
    value = data.get(key)
    return value if isinstance(value, str) else None


def whole(data: Mapping[str, Any], key: str) -> int | None:
    """A whole number, of those that the journal writes."""
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value < 2**63 else None


def floating(data: Mapping[str, Any], key: str) -> float | None:
    """A number."""
    if isinstance(value := data.get(key), float):
        return value
    found = whole(data, key)
    return None if found is None else float(found)


def mapping(data: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """A mapping."""
    value = data.get(key)
    return value if isinstance(value, dict) else None


def is_stat(value: Any) -> bool:
    """Whether it is the inode, ctime and size of a file."""
    if type(value) is not list or len(value) != 3:
        return False
    inode, changed, size = value
    return type(inode) is int and type(changed) is int and type(size) is int
