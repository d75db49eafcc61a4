"""Notice what a monotonic clock cannot say: that the wall clock jumped, or that machine or process stood still."""

from __future__ import annotations

import time

from msgspec import Struct

JUMP_SECONDS = 5.0  # smaller steps are ordinary corrections
PAUSE_SECONDS = 2.0  # a loop that is merely late on a busy machine is not paused


class Clocks(Struct):
    """The last reading of the three clocks; ``look`` tells what happened since."""

    wall: float
    mono: float  # stands while the machine is suspended
    boot: float  # goes on then

    @classmethod
    def now(cls) -> Clocks:
        """As they stand."""
        return cls(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))

    def look(self, now: Clocks) -> tuple[float, float]:
        """Seconds by which the wall clock was set, and for which the machine was suspended; 0 for a mere drift.

        After a suspension the wall clock is right, and what was told before was right as well.
        """
        was_set = (now.wall - self.wall) - (now.boot - self.boot)
        suspended = (now.boot - self.boot) - (now.mono - self.mono)
        self.wall, self.mono, self.boot = now.wall, now.mono, now.boot
        return _worth_telling(was_set), _worth_telling(suspended)


def _worth_telling(seconds: float) -> float:
    return seconds if abs(seconds) >= JUMP_SECONDS else 0.0


def stood_still(wanted_wake: float | None, before_sleep: float, after: float) -> float:
    """Seconds that this process did not run although it was due to wake.

    ``wanted_wake`` is when the sleep was to end at the latest, ``after`` when it did. A standstill that ended
    before it was due to wake cannot be told from sleep, and does no harm.
    """
    if wanted_wake is None:
        return 0.0
    late = after - max(wanted_wake, before_sleep)
    return late if late >= PAUSE_SECONDS else 0.0
