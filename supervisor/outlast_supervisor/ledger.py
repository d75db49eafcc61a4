"""Reading and writing a run's journal from a command, while no supervisor has the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlast_jobs.locks import Busy, RunLock
from outlast_jobs.rundir import RunDirectory

if TYPE_CHECKING:
    from outlast_jobs.history_model import History


def history_of(run: RunDirectory) -> History:
    """What the journal says of the run so far."""
    from outlast_jobs.history import read_history

    return read_history(run)


def answer_to(
    run: RunDirectory, request: str, since: Mapping[str, int] | None = None
) -> tuple[bool, str] | None:
    """Whether a request was granted, and in what words; None while nobody has answered.

    ``since`` is where the journal ended before it was asked: a journal may be long, and what is new of it is not.
    """
    from outlast_jobs.history import replay
    from outlast_jobs.journal import iter_journal

    found = replay(iter_journal(run, [], since), running=True).answers.get(request)
    return (found.ok, found.text) if found is not None else None


def journal_end(run: RunDirectory) -> dict[str, int]:
    """Where the journal ends by now."""
    from outlast_jobs.journal import journal_end

    return journal_end(run)


@contextmanager
def held_lock(run: RunDirectory) -> Iterator[Busy | None]:
    """The run's lock for as long as the block lasts, or who has it instead."""
    lock = RunLock(run, signs=False)
    taken = lock.acquire()
    if isinstance(taken, Busy):
        yield taken
        return
    try:
        yield None
    finally:
        lock.release()


def record(run: RunDirectory, *events: tuple[str, Mapping[str, Any]]) -> None:
    """Add events to the journal, in a file of their own as each supervisor's life has one. Needs the lock."""
    from outlast_jobs.journal import JournalWriter

    writer = JournalWriter.open(run)
    try:
        writer.write([writer.append(event, data) for event, data in events])
    finally:
        writer.close()
