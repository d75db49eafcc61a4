"""When the machine goes: several may say so, and the nearest of them counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from outlast_jobs import events as journal

from . import events as ev
from .launch import Launcher

SAME = 1.0  # seconds; a source that is asked again and says the same is not news


class Deadlines:
    """Keeps what each source says, and tells the nearest to the state table, the journal and the next worker.

    A source is named in words for people: "Slurm's end time of job 7". Instants are of the monotonic clock,
    in seconds.
    """

    def __init__(
        self,
        launcher: Launcher,
        note: Callable[[str, dict[str, Any]], None],
        post: Callable[[ev.Event], None],
    ) -> None:
        self._launcher, self._note, self._post = launcher, note, post
        self._known: dict[str, float] = {}
        self._told: tuple[float, str] | None = None

    def know(self, source: str, at: float | None) -> None:
        """A source says when; None where it knows of no end (any more)."""
        if at is None:
            self._known.pop(source, None)
        else:
            self._known[source] = at
        nearest = min(((at, source) for source, at in self._known.items()), default=None)
        before, self._told = self._told, nearest
        if nearest is None:
            if before is not None:
                self._launcher.deadline = None
                self._note(journal.DEADLINE, {"at": None, "from": before[1]})
                self._post(ev.DeadlineKnown(None, ""))
            return
        if before is not None and before[1] == nearest[1] and abs(before[0] - nearest[0]) < SAME:
            self._told = before
            return
        self._launcher.deadline = nearest[0]
        at = time.time() + nearest[0] - time.monotonic()
        self._note(journal.DEADLINE, {"at": at, "from": nearest[1]})
        self._post(ev.DeadlineKnown(nearest[0], nearest[1]))
