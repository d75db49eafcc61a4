"""Following a run's logs from attempt to attempt: told by the kernel or, across hosts, by looking."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.logview import Piece, Position, attempt_logs, read_on

POLL = 2.0
"""Seconds between two looks where no kernel tells of another host's writes."""
SAFETY = 30.0
"""Seconds after which to look even where the kernel tells: a queue of change notices can overflow."""


class Follower:
    """Everything that is written to a run's logs from a position on, whichever attempt writes it."""

    def __init__(self, run: RunDirectory, at: Position | None = None, *, network: bool | None = None) -> None:
        self._run = run
        self._at = at
        self._changed = threading.Event()
        self._observer: Any = None
        self._watched: set[Path] = set()
        self.polling = filesystem_kind(run.path).network if network is None else network

    def __enter__(self) -> Self:
        self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def read(self) -> Iterator[Piece]:
        """Everything that is new by now. Goes on into the next attempt when there is one."""
        while True:
            logs = attempt_logs(self._run.logs)
            if self._at is None:
                if not logs:
                    return
                self._at = Position(min(logs))
            # Looked up before reading: the next attempt starts only when nothing of this one is left.
            later = [attempt for attempt in logs if attempt > self._at.attempt]
            if self._at.attempt in logs:
                for piece in read_on(logs[self._at.attempt], self._at):
                    self._at = piece.next
                    yield piece
            if not later:
                return
            self._at = Position(min(later))

    def wait(self, seconds: float | None = None) -> None:
        """Until something may have changed, or the time is over."""
        self._watch()
        most = POLL if self.polling else SAFETY
        self._changed.wait(most if seconds is None else min(seconds, most))
        self._changed.clear()

    def _watch(self) -> None:
        """Watch the run directory and, from when it exists, its logs."""
        if self.polling:
            return
        try:
            self._start()
            for folder in (self._run.path, self._run.logs):
                if folder not in self._watched and folder.is_dir():
                    self._schedule(folder)
        except OSError:  # no inotify, or no watches left for this user
            self.polling = True

    def _start(self) -> None:
        if self._observer is None:
            from watchdog.observers import Observer

            self._observer = Observer()
            self._observer.daemon = True
            self._observer.start()

    def _schedule(self, folder: Path) -> None:
        from watchdog.events import (
            DirCreatedEvent,
            FileCreatedEvent,
            FileModifiedEvent,
            FileMovedEvent,
            FileSystemEvent,
            FileSystemEventHandler,
        )

        changed = self._changed

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                changed.set()

        # Opening and closing are left out: our own reading would wake us for ever.
        wanted: list[type[FileSystemEvent]] = [
            DirCreatedEvent,
            FileCreatedEvent,
            FileModifiedEvent,
            FileMovedEvent,
        ]
        self._observer.schedule(Handler(), str(folder), recursive=False, event_filter=wanted)
        self._watched.add(folder)
        self._changed.set()  # something may have come before the watch did
