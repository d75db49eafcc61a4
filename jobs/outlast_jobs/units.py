"""Durations, sizes and ranges with units: read from what people write, written for people to read."""

from __future__ import annotations

import math
import re

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
_NUMBER = r"\d{1,18}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,3})?"
_PLAIN = re.compile(_NUMBER)
_PART = re.compile(rf"({_NUMBER})\s*([a-zA-Zµ]+)\s*")
_CLOCK = re.compile(r"(\d{1,6}):([0-5]\d):([0-5]\d)")
_SIZE = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?\s*([a-zA-Z]*)")
_LONGEST = 1000 * 366 * 86400.0  # a thousand years: beyond it a typing error, and floats lose milliseconds
_LARGEST = 2**63 - 1  # what a file offset can hold

DURATION_FORMS = 'write it like "30s", "10m", "1h30m", "7d" or "04:00:00"'
SIZE_FORMS = 'write it like "500MB" or "20GiB"'
RANGE_FORMS = 'write it like "1s..60s"'


class UnitError(ValueError):
    """A text is no duration, size or range; ``cure`` says how to write it."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(f"{problem}; {cure}")
        self.cure = cure


def parse_duration(value: str | int | float) -> float:
    """Seconds of a text such as "1h30m" or "04:00:00"; a bare number is seconds."""
    if isinstance(value, bool):
        raise UnitError(f"{str(value).lower()} is no duration", DURATION_FORMS)
    seconds = _seconds_of(value.strip()) if isinstance(value, str) else float(value)
    if seconds is None:
        raise UnitError(f'"{value}" is no duration', DURATION_FORMS)
    if not math.isfinite(seconds) or seconds < 0 or seconds > _LONGEST:
        raise UnitError(f'"{value}" is out of range for a duration', DURATION_FORMS)
    return seconds


def _seconds_of(text: str) -> float | None:
    if _PLAIN.fullmatch(text):
        return float(text)
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part) for part in clock.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    total, at, above = 0.0, 0, math.inf
    while at < len(text):
        part = _PART.match(text, at)
        unit = _SECONDS.get(part[2]) if part else None
        if part is None or unit is None or unit >= above:  # "5m1h" and "1h1h" are slips, not sums
            return None
        total, at, above = total + float(part[1]) * unit, part.end(), unit
    return total if text else None


def parse_size(value: str | int) -> int:
    """Bytes of a text such as "20GiB" (binary) or "500MB" (decimal); a bare number is bytes."""
    if isinstance(value, bool):
        raise UnitError(f"{str(value).lower()} is no size", SIZE_FORMS)
    size = _bytes_of(value) if isinstance(value, str) else value
    if not 0 <= size <= _LARGEST:
        raise UnitError(f'"{value}" is out of range for a size', SIZE_FORMS)
    return size


def _bytes_of(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UnitError(f'"{text}" is no size', SIZE_FORMS)
    whole, fraction, unit = found[1], found[2] or "", found[3]
    if unit in _BYTES or not unit:
        # in whole numbers: 0.1 GB as a float would be a byte too many
        scale: int = 10 ** len(fraction)
        return int(whole + fraction) * _BYTES[unit or "B"] // scale
    letter = unit[0].upper()
    if letter in "KMGTP" and unit.lower() in (letter.lower(), f"{letter}b".lower(), f"{letter}ib".lower()):
        number = whole + (f".{fraction}" if fraction else "")
        raise UnitError(
            f'"{text}" has no unit known here', f'write "{number}{letter}iB" or "{number}{letter}B"'
        )
    raise UnitError(f'"{text}" has no unit known here', SIZE_FORMS)


def parse_range(value: str) -> tuple[float, float]:
    """Both ends, in seconds, of a text such as "1s..60s"."""
    low, dots, high = value.partition("..") if isinstance(value, str) else ("", "", "")
    if not dots:
        raise UnitError(f'"{value}" is no range of durations', RANGE_FORMS)
    ends = parse_duration(low), parse_duration(high)
    if ends[0] > ends[1]:
        raise UnitError(f'"{value}" ends before it begins', f'write it as "{high.strip()}..{low.strip()}"')
    return ends


def format_duration(seconds: float) -> str:
    """A duration for people: the two largest units, "250 ms", "12.3 s", "1h 5m", "2d 3h"."""
    if not math.isfinite(seconds):
        return str(seconds)
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def format_size(size: float) -> str:
    """A size for people: "512 B", "1.5 GiB"."""
    if abs(size) < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} PiB"
