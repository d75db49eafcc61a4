"""A folder's changes, told by the kernel. The watcher is loaded when it is asked for: it takes too long for a start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path


def observe(folder: Path, wake: Callable[[], None], kinds: tuple[str, ...]) -> Callable[[], None]:
    """Call ``wake``, in a thread of its own, at each of these watchdog events; what is returned ends that.

    Raises OSError, or what watchdog raises, where there is no inotify or no instance of it left.
    """
    from watchdog import events
    from watchdog.observers import Observer

    class Handler(events.FileSystemEventHandler):
        def on_any_event(self, event: object) -> None:
            wake()

    observer = Observer()
    observer.schedule(Handler(), str(folder), event_filter=[getattr(events, kind) for kind in kinds])
    observer.daemon = True
    observer.start()

    def stop() -> None:
        with contextlib.suppress(Exception):
            observer.stop()

    return stop
