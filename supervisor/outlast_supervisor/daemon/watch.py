"""Changes in the folder, told by the kernel; what it does not tell is found by looking now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from outlast_jobs.parallel import start_thread

from ..observing import observe


class Watch:
    """Calls ``wake`` whenever something in the folder may have changed; silent where there is no inotify."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        self._folder, self._wake = folder, wake
        self._stop: Callable[[], None] = lambda: None
        # in a thread: the folder may lie on a file system that hangs; without one the folder is looked at now and then
        start_thread(self._begin, "watch")

    def _begin(self) -> None:
        with contextlib.suppress(Exception):  # no inotify instance left, or a file system that has none
            kinds = ("FileCreatedEvent", "FileClosedEvent", "FileDeletedEvent", "FileMovedEvent")
            self._stop = observe(self._folder, self._wake, kinds)
            self._wake()  # what happened before the watch began raised no event

    def close(self) -> None:
        """Stop watching."""
        self._stop()
