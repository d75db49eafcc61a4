"""Where the marks of an axis stand: round values, few of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# seconds
_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between both ends, at most so many."""
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (size * factor) <= most)
    first = math.ceil(low / step)
    found = []
    while first * step <= high + step * 1e-9:
        found.append(first * step)
        first += 1
    return found


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """The same for an axis of powers, both ends above 0: 1, 2 and 5 of each, or powers alone where these are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) <= most:
            break
    return found[:: max(1, math.ceil(len(found) / most))] or [low]


def time_ticks(since: float, until: float, most: int = 8) -> tuple[list[float], Callable[[float], str]]:
    """Round moments of local time, and how they are written; none where no calendar has them."""
    try:
        time.localtime(until)
        offset = time.localtime(since).tm_gmtoff
    except (OverflowError, ValueError, OSError):
        return [], str
    span = until - since
    days = math.ceil(span / 86400 / most)
    step = next((float(step) for step in _CLOCK if span / step <= most), 86400.0 * days)
    first = math.ceil((since + offset) / step) * step - offset
    found = [first + step * number for number in range(max(0, math.floor((until - first) / step) + 1))]
    form = (
        "%H:%M:%S"
        if step < 60
        else "%H:%M"
        if span < 86400
        else "%m-%d %H:%M"
        if step < 86400
        else "%Y-%m-%d"
    )
    return found, lambda at: time.strftime(form, time.localtime(at))
