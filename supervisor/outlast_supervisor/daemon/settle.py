"""When a file counts as changed, and when as removed: only after it has been left alone for a moment.

Editors truncate and write, or rename; `cp` writes in pieces; the first half of a job file is often a whole job.
So a change is taken when the file has looked the same for SETTLE seconds, and a removal after GONE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

SETTLE = 0.5
"""Seconds for which a file must look the same before it is read."""
GONE = 2.0
"""Seconds for which a file must be missing before its job is stopped."""

Signature = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of one file: how it looks now and since when, and how it looked when it was last read."""

    latest: Signature | None  # None: it is missing
    since: float  # monotonic seconds
    taken: Signature | None = None  # None: never read

    @property
    def changed(self) -> bool:
        """Whether it has to be read once it has settled."""
        return self.latest is not None and self.latest != self.taken

    def settled(self, now: float) -> bool:
        """Whether it has looked like this for long enough."""
        return now - self.since >= (GONE if self.latest is None else SETTLE)


def settle(
    before: Mapping[str, Sight], seen: Mapping[str, Signature], now: float
) -> tuple[dict[str, Sight], float | None]:
    """What is known after a look, without the files that are gone, and when to look again for what is pending."""
    after: dict[str, Sight] = {}
    for name in before.keys() | seen.keys():
        old, latest = before.get(name), seen.get(name)
        sight = Sight(latest, now) if old is None else old
        if sight.latest != latest:
            sight = replace(sight, latest=latest, since=now)
        if latest is not None or (sight.taken is not None and not sight.settled(now)):
            after[name] = sight
    dues = [
        sight.since + (GONE if sight.latest is None else SETTLE)
        for sight in after.values()
        if sight.latest is None or (sight.changed and not sight.settled(now))
    ]
    return after, min(dues, default=None)


def took(sight: Sight) -> Sight:
    """The same file, read as it looks now."""
    return replace(sight, taken=sight.latest)
