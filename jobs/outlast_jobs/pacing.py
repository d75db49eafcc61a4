"""`every: auto`: what a run's past says of saves and ends, and the interval that follows from it. Pure.

What is estimated is the time between ends that lose work. An end that came with enough notice lost none, whatever
it interrupted; so ends with and without notice are counted apart. Times are seconds.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from outlast_jobs.cadence import auto_interval
from outlast_jobs.ending import Kind
from outlast_jobs.units import format_duration

PRIOR_ENDS: Final = 1.5
"""Ends that are taken to have been seen before the first one was: what a new run is paced by."""
PRIOR_UP: Final = 10800.0
"""The up-time in which they are taken to have been seen."""
EITHER: Final = 1 / 16
"""Weight of the belief that the next end is of the other kind. Small: a place gives notice almost always or never."""
HALF: Final = 48.0
"""So many ends later an end counts half: machines and clouds have calm and rough weeks."""
COSTS_KEPT: Final = 20
VANISHED: Final = "vanished"
"""Outcome of an attempt that started and of whose end nothing was recorded: killed with its supervisor."""
_LOSES = frozenset({Kind.CRASHED_PROGRESS, Kind.CRASHED, Kind.HUNG, Kind.SICK, VANISHED})


class Past(Struct, frozen=True):
    """What counts of a run so far. Only attempts whose trainer attached are in it: others had nothing to save."""

    up: float = 0.0
    """Time for which attempts lived, from their start."""
    lost: float = 0.0
    """Ends that nothing announced, or too late."""
    noticed: float = 0.0
    """Ends before which the state was saved, and which no person asked for."""
    costs: tuple[float, ...] = ()
    """What the newest saves cost the training."""

    def lived(self, seconds: float) -> Past:
        """An attempt has lived for so long, and goes on."""
        return replace(self, up=self.up + max(0.0, seconds))

    def saved(self, *costs: float) -> Past:
        """Saves came to their end."""
        return replace(self, costs=(*self.costs, *(max(0.0, cost) for cost in costs))[-COSTS_KEPT:])

    def ended(self, seconds: float, kind: str, by: str | None) -> Past:
        """An attempt that lived for so long ended in this way; ``by`` is who stopped it, where somebody did."""
        past = self.lived(seconds)
        lost = kind in _LOSES
        if not lost and (kind != Kind.SAVED or by in ("person", "restart")):
            return past
        keep = 0.5 ** (1 / HALF)
        return Past(
            past.up * keep, past.lost * keep + lost, past.noticed * keep + (not lost), costs=past.costs
        )


class Interval(Struct, frozen=True):
    """The time from one save to the next, and why it is that."""

    seconds: float
    reason: str


def mean_between_losses(past: Past) -> float:
    """Expected up-time until an end that loses work.

    The rate of all ends is the mean of a gamma posterior, the share of those without notice that of a beta one.
    """
    ends = past.lost + past.noticed
    unannounced = (past.lost + EITHER) / (ends + 2 * EITHER)
    return (past.up + PRIOR_UP) / (ends + PRIOR_ENDS) / unannounced


def cost_of_a_save(past: Past) -> float | None:
    """The median of the newest saves: one that met a stuck disk says little of the next."""
    if not past.costs:
        return None
    ordered = sorted(past.costs)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def automatic(past: Past, between: tuple[float, float]) -> Interval:
    """The interval that loses least time to saves and to lost work together, within bounds."""
    low, high = between
    cost = cost_of_a_save(past)
    if cost is None:
        return Interval(low, "the lower bound, until a save has been measured")
    mean = mean_between_losses(past)
    wanted = auto_interval(cost, mean, (0.0, float("inf")))
    why = f"a save costs {format_duration(cost)}, and an end that loses work is expected every {format_duration(mean)}"
    if wanted < low:
        return Interval(low, f"{why}; not more often than the lower bound")
    if wanted > high:
        return Interval(high, f"{why}; not more seldom than the upper bound")
    return Interval(wanted, why)
