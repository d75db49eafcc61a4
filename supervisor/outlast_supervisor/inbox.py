"""Requests left in the run directory: seen through inotify, or by looking where there is none."""

from __future__ import annotations

from collections.abc import Callable

from outlast_jobs.parallel import start_thread
from outlast_jobs.rundir import RunDirectory

from .observing import observe

POLL_SECONDS = 2.0  # on network file systems, where another host's write raises no event here


class Inbox:
    """Calls ``wake`` whenever something may lie in ``requests/``.

    ``poll`` is the interval at which the loop has to look by itself, None where it will be told.
    """

    def __init__(self, run: RunDirectory, network: bool, wake: Callable[[], None]) -> None:
        self._run = run
        self._wake = wake
        self._stop: Callable[[], None] = lambda: None
        self.poll: float | None = POLL_SECONDS if network else None

    def watch(self) -> None:
        """Start watching, in a thread of its own: loading the watcher takes too long for the loop."""
        if self.poll is None:
            # The watcher loads it. Whoever forks just then calls what it has registered for after a fork, but not what
            # it has for before one, and a traceback is printed.
            import logging  # noqa: F401
        if self.poll is None and start_thread(self._watch, "inbox") is None:
            self.poll = POLL_SECONDS
        if self.poll is not None:
            self._wake()  # the first look; each brings the next

    def _watch(self) -> None:
        try:
            kinds = ("FileCreatedEvent", "FileMovedEvent", "FileClosedEvent")
            self._stop = observe(self._run.requests, self._wake, kinds)
        except Exception:  # no inotify instance left, or no inotify at all: look by ourselves
            self.poll = POLL_SECONDS
        # what was asked before the watch began raised no event
        self._wake()

    def close(self) -> None:
        """Stop watching."""
        self._stop()
