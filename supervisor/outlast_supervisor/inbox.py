"""Requests left in the run directory: seen through inotify, or by looking where there is none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from outlast_jobs.rundir import RunDirectory

POLL_SECONDS = 2.0  # on network file systems, where another host's write raises no event here


class Inbox:
    """Calls ``wake`` whenever something may lie in ``requests/``.

    ``poll`` is the interval at which the loop has to look by itself, None where it will be told.
    """

    def __init__(self, run: RunDirectory, network: bool, wake: Callable[[], None]) -> None:
        self._run = run
        self._wake = wake
        self._observer: Any = None
        self.poll: float | None = POLL_SECONDS if network else None

    def watch(self) -> None:
        """Start watching, in a thread of its own: loading the watcher takes too long for the loop."""
        if self.poll is None:
            threading.Thread(target=self._watch, name="inbox", daemon=True).start()

    def _watch(self) -> None:
        try:
            from watchdog.events import (
                FileClosedEvent,
                FileCreatedEvent,
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
                str(self._run.requests),
                event_filter=[FileCreatedEvent, FileMovedEvent, FileClosedEvent],
            )
            observer.daemon = True
            observer.start()
            self._observer = observer
        except Exception:  # no inotify instance left, or no inotify at all: look by ourselves
            self.poll = POLL_SECONDS
        # what was asked before the watch began raised no event
        self._wake()

    def close(self) -> None:
        """Stop watching."""
        if self._observer is not None:
            with contextlib.suppress(Exception):
                self._observer.stop()
