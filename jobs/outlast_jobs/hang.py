"""How long a worker may be silent: limits for each phase, learnt from how long its steps have taken."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

SAMPLES = 20
"""From this many samples of a phase on, its limit is learnt."""
TIMES_LONGEST = 10.0
"""A silence this many times the longest ever seen is a hang."""
TIMES_MIN = 3.0
"""Before it is learnt, the limit is this many times the least one: 30 minutes by default."""


class PhaseTimes(Struct, frozen=True):
    """What was seen so far: for each phase how many silences between two signs of life, and the longest."""

    counts: Mapping[str, int] = {}
    longest: Mapping[str, float] = {}

    def seen(self, phase: str, seconds: float) -> PhaseTimes:
        """These times and one more sample, in seconds awake (time spent stopped does not belong in it)."""
        return PhaseTimes(
            {**self.counts, phase: self.counts.get(phase, 0) + 1},
            {**self.longest, phase: max(self.longest.get(phase, 0.0), seconds)},
        )


class Hung(Struct, frozen=True):
    """The worker is taken to hang."""

    phase: str
    seconds: float
    limit: float
    reason: str


def limit(phase: str, times: PhaseTimes, min_seconds: float, attached: bool) -> float | None:
    """Seconds of silence in a phase that make a hang; None where no trainer attached."""
    if not attached:
        return None
    longest = times.longest.get(phase, 0.0)
    least = min_seconds if times.counts.get(phase, 0) >= SAMPLES else TIMES_MIN * min_seconds
    return max(least, TIMES_LONGEST * longest)


def hung(
    phase: str, silent_seconds: float, times: PhaseTimes, min_seconds: float, attached: bool
) -> Hung | None:
    """Whether a silence in this phase is a hang."""
    most = limit(phase, times, min_seconds, attached)
    if most is None or silent_seconds < most:
        return None
    count, longest = times.counts.get(phase, 0), times.longest.get(phase, 0.0)
    known = f"longest of {count} seen: {longest:.1f} s" if count else "none seen before"
    return Hung(
        phase,
        silent_seconds,
        most,
        f"no sign of life for {silent_seconds:.0f} s in phase {phase}, the limit is {most:.0f} s ({known})",
    )
