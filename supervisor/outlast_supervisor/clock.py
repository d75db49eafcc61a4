"""Notice what a monotonic clock cannot say: that the wall clock jumped, or that this process stood still."""

from __future__ import annotations

from msgspec import Struct

JUMP_SECONDS = 5.0  # smaller steps are ordinary corrections
PAUSE_SECONDS = 2.0  # a loop that is merely late on a busy machine is not paused


class Clocks(Struct):
    """The last reading of both clocks; ``look`` tells what happened since."""

    wall: float
    mono: float

    def jump(self, wall: float, mono: float) -> float:
        """Seconds by which the wall clock moved against the monotonic one, 0 for a mere drift."""
        moved = (wall - self.wall) - (mono - self.mono)
        self.wall, self.mono = wall, mono
        return moved if abs(moved) >= JUMP_SECONDS else 0.0


def stood_still(wanted_wake: float | None, before_sleep: float, after: float) -> float:
    """Seconds that this process did not run although it was due to wake.

    ``wanted_wake`` is when the sleep was to end at the latest, ``after`` when it did. A standstill that ended
    before it was due to wake cannot be told from sleep, and does no harm.
    """
    if wanted_wake is None:
        return 0.0
    late = after - max(wanted_wake, before_sleep)
    return late if late >= PAUSE_SECONDS else 0.0
