"""Changes in the folder, told by the kernel; what it does not tell is found by looking now and then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Watch:
    """Calls ``wake`` whenever something in the folder may have changed; silent where there is no inotify."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        self._folder, self._wake = folder, wake
        self._observer: Any = None
        # in a thread: the folder may lie on a file system that hangs
        threading.Thread(target=self._begin, name="watch", daemon=True).start()

    def _begin(self) -> None:
        with contextlib.suppress(Exception):  # no inotify instance left, or a file system that has none
            from watchdog.events import (
                FileClosedEvent,
                FileCreatedEvent,
                FileDeletedEvent,
                FileMovedEvent,
                FileSystemEventHandler,
            )
            from watchdog.observers import Observer

            wake = self._wake

            class Handler(FileSystemEventHandler):
                def on_any_event(self, event: object) -> None:
                    wake()

            observer = Observer()
            observer.schedule(
                Handler(),
                str(self._folder),
                event_filter=[FileCreatedEvent, FileClosedEvent, FileDeletedEvent, FileMovedEvent],
            )
            observer.daemon = True
            observer.start()
            self._observer = observer
            self._wake()  # what happened before the watch began raised no event

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            with contextlib.suppress(Exception):
                self._observer.stop()
