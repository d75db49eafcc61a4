"""Marks where an operation begins and ends: calls that a trace shows, and that do nothing. Imports next to nothing."""

from __future__ import annotations

import os
import time

BEGIN, END = "/outlast-mark-begin", "/outlast-mark-end"
PLACE = "OUTLAST_MARK_PLACE"
"""Where it is set, an operation waits before it begins: its pid is in that file, and a file beside it lets it go on."""
GO = ".go"


def begin() -> None:
    """From here on each system call is a point of attack."""
    place = os.environ.get(PLACE)
    if place:
        _wait(place)
    os.access(BEGIN, os.F_OK)


def alone() -> None:
    """One thing after another, in one thread, and so the same calls in the same order each time."""
    from outlast_jobs import parallel

    parallel.MOST_THREADS = 1
    here = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {here[os.getpid() % len(here)]})


def end() -> None:
    """The operation is over."""
    os.access(END, os.F_OK)


def _wait(place: str) -> None:
    """Until a tracer is there. Nothing is called meanwhile that it counts among the operation's calls."""
    with open(f"{place}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{place}.new", place)
    while not os.access(place + GO, os.F_OK):
        time.sleep(0.001)
