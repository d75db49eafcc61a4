"""The journal from the loop's side: records are handed over, written by a helper, awaited by number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from outlast_jobs import events as journal
from outlast_jobs.journal import JournalWriter

from .helper import Helper

PATIENCE = 10.0  # seconds without a written journal after which decisions are carried out all the same
RETRY = 1.0
TOGETHER = 0.005  # seconds for which a record waits for one that comes at once: one fsync is for both
_KEPT = 10_000  # records held in memory while the journal cannot be written


class Journaler:
    """Numbers records and says up to which number they are on disk.

    Only the loop calls ``note`` and ``delivered``; ``note_and_wait`` is for the helper that does chores.
    """

    def __init__(
        self, writer: JournalWriter, helper: Helper, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._helper = helper
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._number = 0
        self._synced = 0
        self._in_flight = 0
        self._oldest_at: float | None = None
        self._retry_at: float | None = None
        self._together_at: float | None = None
        self._changed = threading.Condition(self._lock)
        self.error = ""

    def note(self, event: str, data: dict[str, Any], *, together: bool = False) -> int:
        """Hand over a record; its number is on disk when ``settled`` says so.

        ``together`` says that another one comes at once, with which it may be written.
        """
        with self._lock:
            self._together_at = (self._together_at or self._clock() + TOGETHER) if together else None
            line = self._writer.append(event, data)
            self._number += 1
            self._lines.append(line)
            if len(self._lines) > _KEPT + self._in_flight:
                del self._lines[self._in_flight]
            if self._oldest_at is None:
                self._oldest_at = self._clock()
            number = self._number
        if not self._in_flight and self._retry_at is None and not together:
            self._write()
        return number

    def note_and_wait(self, event: str, data: dict[str, Any]) -> None:
        """From a helper: hand over a record and wait until it is on disk, or for as long as anyone waits."""
        number = self.note(event, data)
        with self._changed:
            while not self.settled(number):
                self._changed.wait(max(0.01, self._patience()))

    def stood_still(self, seconds: float) -> None:
        """Time did not pass for us, and so not for a write that is under way."""
        with self._lock:
            if self._oldest_at is not None:
                self._oldest_at += seconds

    def _patience(self) -> float:
        """Seconds until nobody waits for the journal any more."""
        return 0.0 if self._oldest_at is None else max(0.0, self._oldest_at + PATIENCE - self._clock())

    def settled(self, number: int) -> bool:
        """Whether a record is on disk, or was waited for long enough."""
        return self._synced >= number or self.unjournaled

    @property
    def waiting(self) -> int:
        """Records that are not on disk yet."""
        return len(self._lines)

    @property
    def unjournaled(self) -> bool:
        """The journal could not be written for so long that the run goes on without it."""
        return self._oldest_at is not None and self._clock() - self._oldest_at >= PATIENCE

    @property
    def next_due(self) -> float | None:
        """When to call ``tick`` again."""
        if self._oldest_at is None:
            return None
        dues = [self._oldest_at + PATIENCE] if not self.unjournaled else []
        dues += [at for at in (self._retry_at, self._together_at) if at is not None]
        return min(dues, default=None)

    def tick(self) -> None:
        """Try again what failed, or write what waited for another one, when its time has come."""
        now, together_at = self._clock(), self._together_at
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._write()
        elif together_at is not None and now >= together_at:
            self._together_at = None
            if self._retry_at is None:
                self._write()

    def delivered(self, error: BaseException | None) -> None:
        """The helper's result of the latest write."""
        late = self._clock() - self._oldest_at if self.unjournaled and self._oldest_at is not None else 0.0
        why = self.error
        with self._changed:
            count, self._in_flight = self._in_flight, 0
            if error is None:
                del self._lines[:count]
                self._synced = self._number - len(self._lines)
                self._oldest_at = self._clock() if self._lines else None
                self.error = ""
                self._changed.notify_all()
            else:
                self.error = str(error)
                self._retry_at = self._clock() + RETRY
            more = bool(self._lines) and self._retry_at is None
        if error is None and late:
            self.note(journal.UNJOURNALED, {"reason": why, "seconds": round(late, 1)})
        elif more:
            self._write()

    def _write(self) -> None:
        with self._lock:
            if self._in_flight or not self._lines:
                return
            lines = list(self._lines)
            self._in_flight = len(lines)
        self._helper.submit("journal", lambda: self._writer.write(lines))
