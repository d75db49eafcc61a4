"""Read a JSON object that anybody may have written: limited in size and depth, with one named error."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from outlast_jobs.errors import Malformed

MAX_DEPTH = 64

# One linear pass: a string (closed or running to the end of the data) or one bracket. The possessive
# repeats keep an unclosed string full of escapes from costing the square of its length.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def parse_object(data: bytes, *, what: str, limit: int) -> dict[str, Any]:
    """The JSON object in ``data``; ``what`` names it in errors, ``limit`` is the most bytes it may have."""
    if len(data) > limit:
        raise Malformed(f"{what} has {len(data)} bytes, more than the {limit} that are read")
    if not data.strip(b" \t\r\n\0"):
        raise Malformed(f"{what} {'holds nothing but zeros or blanks' if data else 'is empty'}")
    if _too_deep(data):
        raise Malformed(f"{what} is nested deeper than {MAX_DEPTH} levels")
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors and a bad encoding are ValueErrors
        raise Malformed(f"{what} is not JSON: {_first_line(error)}") from None
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a JSON object but {_KINDS.get(type(value), 'something else')}")
    return value


_KINDS: dict[type, str] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False  # the usual case, without a walk
    depth = 0
    for match in _TOKEN.finditer(data):
        first = data[match.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
