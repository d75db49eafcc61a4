"""Find a NaN among floating-point numbers by their bits alone, without numpy, at about the speed of a hash.

The layouts are IEEE 754's and, of eight bits, those of the OCP 8-bit floating point specification; little-endian.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

import msgspec

_CHUNK = 1 << 20  # bytes that are copied at a time


class _Kind(msgspec.Struct, frozen=True):
    """A format: which highest bytes a NaN can have, and whether a whole number of those bits is one."""

    nbytes: int
    tops: bytes
    is_nan: Callable[[int], bool]


def _plain(nbytes: int, mantissa: int) -> _Kind:
    """A format whose NaNs are what lies above the infinities, whatever the sign."""
    magnitude = (1 << (8 * nbytes - 1)) - 1
    infinity = magnitude >> mantissa << mantissa
    tops = {value >> (8 * (nbytes - 1)) for value in (infinity, magnitude)}
    low = range(min(tops), max(tops) + 1)
    return _Kind(
        nbytes, bytes([*low, *(top | 0x80 for top in low)]), lambda value: value & magnitude > infinity
    )


def _of(*values: int) -> _Kind:
    """A format of one byte with these NaNs."""
    return _Kind(1, bytes(values), lambda value: value in values)


_KINDS = {
    "float16": _plain(2, 10),
    "bfloat16": _plain(2, 7),
    "float32": _plain(4, 23),
    "float64": _plain(8, 52),
    "float8_e5m2": _plain(1, 2),
    "float8_e4m3fn": _of(0x7F, 0xFF),
    "float8_e4m3fnuz": _of(0x80),
    "float8_e5m2fnuz": _of(0x80),
    "float8_e8m0fnu": _of(0xFF),
}
_CASTS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}

KINDS = frozenset(_KINDS) if sys.byteorder == "little" else frozenset()
"""The formats that can be looked at here, by torch's names of them."""


def has_nan(data: memoryview, kind: str) -> bool:
    """Whether one of these numbers, of a format of `KINDS`, is a NaN. Infinities are none.

    What is shorter than a number at the end is not looked at.
    """
    found = _KINDS[kind]
    length = data.nbytes - data.nbytes % found.nbytes
    for at in range(0, length, _CHUNK):
        chunk = bytes(data[at : min(at + _CHUNK, length)])
        tops = chunk[found.nbytes - 1 :: found.nbytes]
        if not any(top in tops for top in found.tops):
            continue  # the usual case: nothing that large, and each of these looks is a search for one byte
        if any(map(found.is_nan, set(memoryview(chunk).cast(_CASTS[found.nbytes])))):
            return True
    return False
