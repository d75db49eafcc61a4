"""Where the time of a run went: training that counts, training that had to be done again, starting, ending, nothing.

Goodput is the share of the time that went into steps which are part of the run as it stands now. All times are the
wall clocks of the hosts that wrote them, in seconds; where those jump back, the time between is taken for none.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from outlast_jobs.history_model import AttemptRecord
from outlast_jobs.pacing import VANISHED


class Trained(Struct, frozen=True):
    """What an attempt recorded of its steps."""

    first: int
    """The first step that it trained."""
    last: int
    until: float
    """When the last one ended."""
    kept: int
    """How many of them count."""
    kept_until: float | None
    """When the last one that counts ended; None where none does."""
    steps: int
    """How many there are."""
    stood: float = 0.0
    """Seconds before steps that count in which all stood still."""


def stood_still(pauses: deque[tuple[float, float]], since: float, until: float) -> float:
    """Seconds between two steps for which the supervisor stood still, and so the worker, or it had made a step.

    Pauses that have been looked at are dropped: times only go on.
    """
    found = 0.0
    while pauses and pauses[0][0] < until:
        begun, to = pauses.popleft()
        inside = min(until, to) - max(since, begun)
        found += inside if inside > _NEARLY * (to - begun) else 0.0
    return found


class Stretch(Struct, frozen=True):
    """An attempt's life in parts, each from where the one before ended; and what it trained."""

    attempt: AttemptRecord
    begins: float
    trains: float
    kept: float
    lost: float
    ends: float
    trained: Trained | None
    runs: bool = False

    @property
    def parts(self) -> tuple[tuple[str, float, float], ...]:
        """Each part's name, beginning and end."""
        marks = (self.begins, self.trains, self.kept, self.lost, self.ends)
        return tuple(
            (name, since, until) for name, since, until in zip(PARTS, marks, marks[1:], strict=False)
        )

    @property
    def end(self) -> str:
        """How it ended, in the words of the journal."""
        attempt = self.attempt
        if attempt.outcome is None:
            return "runs" if self.runs else "of its end there is no record"
        if attempt.outcome == VANISHED:
            return "of its end there is no record: killed with its supervisor, or the machine went"
        return attempt.reason or attempt.outcome.replace("_", " ")


_NEARLY = 0.9  # woken, a worker may have made a step before its supervisor looks at the clock
PARTS = ("starting", "kept", "lost", "ending")
"""Of an attempt, in order. Beside them there is "down": no attempt was there, or it stood still."""


class Goodput(Struct, frozen=True):
    """Seconds by what they went into; steps that count and steps that had to be trained again."""

    began: float
    until: float
    seconds: dict[str, float]
    kept: int
    lost: int

    @property
    def share(self) -> float | None:
        """Of all the time, what counts; None where there was no time, or nothing is known of the steps."""
        whole = sum(self.seconds.values())
        return self.seconds["kept"] / whole if whole > 0 and self.kept + self.lost else None

    @property
    def share_of_up(self) -> float | None:
        """The same of the time in which an attempt was there."""
        up = sum(self.seconds[part] for part in PARTS)
        return self.seconds["kept"] / up if up > 0 and self.kept + self.lost else None


def stretch(
    attempt: AttemptRecord, trained: Trained | None, next_begins: float | None, now: float
) -> Stretch:
    """One attempt's parts. One of whose end there is no record ends with its last step, or where the next begins."""
    begins = attempt.started
    runs = attempt.outcome is None
    seen = max(begins, attempt.attached or begins, trained.until if trained else begins)
    ends = attempt.ended if attempt.ended is not None else now if runs else seen
    if next_begins is not None:
        ends = min(ends, next_begins)
    ends = max(begins, ends)
    if trained is None:
        return Stretch(attempt, begins, ends, ends, ends, ends, None, runs)
    trains = min(max(begins, attempt.attached or begins), ends)
    lost = min(max(trains, trained.until), ends)
    kept = min(max(trains, trained.kept_until if trained.kept_until is not None else trains), lost)
    return Stretch(attempt, begins, trains, kept, lost, ends, trained, runs)


def stretches(
    attempts: Sequence[AttemptRecord], trained: dict[int, Trained], now: float
) -> tuple[Stretch, ...]:
    """All of them, in order."""
    begins = [attempt.started for attempt in attempts[1:]]
    return tuple(
        stretch(attempt, trained.get(attempt.number), following, now)
        for attempt, following in itertools.zip_longest(attempts, begins)
    )


def account(found: Sequence[Stretch]) -> Goodput:
    """The sums. What lies between two attempts is down, and so is what an attempt stood still."""
    seconds = dict.fromkeys((*PARTS, "down"), 0.0)
    until = began = found[0].begins if found else 0.0
    for one in found:
        seconds["down"] += max(0.0, one.begins - until)
        for name, since, to in one.parts:
            still = min(one.trained.stood, to - since) if one.trained and name == "kept" else 0.0
            seconds[name] += to - since - still
            seconds["down"] += still
        until = max(until, one.ends)
    kept = sum(one.trained.kept for one in found if one.trained)
    steps = sum(one.trained.steps for one in found if one.trained)
    return Goodput(began, until, seconds, kept, steps - kept)
