"""The jobs of a daemon's folder that do not run, for `outlast status`: the others are runs like any."""

from __future__ import annotations

import os
from pathlib import Path

from .books import Books, Places, read_books
from .model import State

_SHOWN = (State.QUEUED, State.WAITING, State.ELSEWHERE, State.REFUSED, State.STOPPING)


def folder_books(folder: str | Path) -> Books | None:
    """What a daemon left in a folder; None where none ever had it."""
    return read_books(Places(Path(os.path.realpath(folder))))


def run_dirs(books: Books) -> list[Path]:
    """The run directories of its jobs, by the names of their files."""
    jobs = [job for _, job in sorted(books.jobs.items()) if job.run_dir and job.state is not State.REFUSED]
    return [Path(job.run_dir) for job in jobs]


def roster(books: Books) -> list[str]:
    """A line for each job file that waits or is refused, and one for the folder where that matters."""
    rows = [(file, job) for file, job in sorted(books.jobs.items()) if job.state in _SHOWN]
    width = max((len(file) for file, _ in rows), default=0)
    lines = [f"{file:<{width}}  {job.state}: {job.reason}" for file, job in rows]
    if books.draining:
        lines.insert(0, 'drained: nothing starts until "outlast drain --resume DIR"')
    if books.trouble:
        lines.insert(0, books.trouble)
    return lines
