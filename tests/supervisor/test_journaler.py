"""The journal seen from the loop: nothing waits for ever, nothing is lost, and the order stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from outlast_jobs.journal import JournalWriter, read_journal
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import journaler as journaler_module
from outlast_supervisor.helper import Helper
from outlast_supervisor.journaler import PATIENCE, RETRY, Journaler


class ByHand:
    """Stands where the helper thread is, so that a test says when a write happens."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, tag: str, job: Callable[[], Any]) -> None:
        self.jobs.append(job)


def make(tmp_path: Path) -> tuple[Journaler, ByHand, list[float], RunDirectory]:
    run = RunDirectory(tmp_path / "run")
    run.create()
    now = [100.0]
    hand = ByHand()
    journaler = Journaler(JournalWriter.open(run), hand, clock=lambda: now[0])  # type: ignore[arg-type]
    return journaler, hand, now, run


def test_a_record_is_settled_only_when_it_is_on_disk(tmp_path: Path) -> None:
    """What waits for a record goes on when its write succeeded, not when it was handed over."""
    journaler, hand, _, run = make(tmp_path)
    number = journaler.note("sealed", {"generation": "g"})
    assert not journaler.settled(number)
    hand.jobs.pop()()
    journaler.delivered(None)
    assert journaler.settled(number)
    assert [r.event for r in read_journal(run).records] == ["sealed"]


def test_a_journal_that_cannot_be_written_holds_nobody_for_ever(tmp_path: Path) -> None:
    """After ten seconds decisions are carried out all the same, and the run says that it is unjournaled."""
    journaler, hand, now, _ = make(tmp_path)
    number = journaler.note("sealed", {})
    hand.jobs.clear()
    journaler.delivered(OSError(28, "no space left on device"))
    assert not journaler.settled(number)
    now[0] += PATIENCE
    assert journaler.unjournaled
    assert journaler.settled(number)


def test_records_kept_in_memory_are_written_when_the_disk_is_back(tmp_path: Path) -> None:
    """Nothing is lost over a failed write: the next one takes the old lines and the new ones, in order."""
    journaler, hand, now, run = make(tmp_path)
    journaler.note("first", {})
    hand.jobs.clear()
    journaler.delivered(OSError(5, "input/output error"))
    journaler.note("second", {})
    assert hand.jobs == []
    now[0] += RETRY
    journaler.tick()
    hand.jobs.pop()()
    journaler.delivered(None)
    assert [r.event for r in read_journal(run).records] == ["first", "second"]
    assert not journaler.unjournaled
    assert journaler.waiting == 0


def test_a_record_waits_a_moment_for_the_one_that_comes_next(tmp_path: Path) -> None:
    """An end and the start behind it are one write, in order; where none follows, the end is written by itself."""
    journaler, hand, now, run = make(tmp_path)
    journaler.note("ended", {}, together=True)
    assert hand.jobs == []
    journaler.note("started", {})
    hand.jobs.pop()()
    journaler.delivered(None)
    alone = journaler.note("ended", {}, together=True)
    due = journaler.next_due
    assert due is not None
    assert now[0] < due < now[0] + 0.1
    now[0] = due
    journaler.tick()
    hand.jobs.pop()()
    journaler.delivered(None)
    assert journaler.settled(alone)
    assert journaler.next_due is None
    assert [r.event for r in read_journal(run).records] == ["ended", "started", "ended"]


def test_records_that_come_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    """A burst of records is two writes, and all are settled after the second."""
    journaler, hand, _, run = make(tmp_path)
    numbers = [journaler.note("event", {"n": n}) for n in range(50)]
    assert len(hand.jobs) == 1
    hand.jobs.pop()()
    journaler.delivered(None)
    assert len(hand.jobs) == 1
    hand.jobs.pop()()
    journaler.delivered(None)
    assert all(journaler.settled(n) for n in numbers)
    assert [r.data["n"] for r in read_journal(run).records] == list(range(50))


def test_a_helper_waits_for_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chore that renames or deletes goes on only when the reason is on disk, and then at once."""
    monkeypatch.setattr(journaler_module, "PATIENCE", 1e6)
    run = RunDirectory(tmp_path / "run")
    run.create()
    results: list[BaseException | None] = []
    journaler: Journaler
    writer = Helper("journal", lambda tag, result, error: results.append(error))
    journaler = Journaler(JournalWriter.open(run), writer)
    passed = threading.Event()

    def chore() -> None:
        journaler.note_and_wait("dropped", {"generation": "g"})
        passed.set()

    threading.Thread(target=chore, daemon=True).start()
    wait_until(lambda: results, 60, "the write")
    assert not passed.is_set()
    journaler.delivered(results[0])
    assert passed.wait(60)
    assert [r.event for r in read_journal(run).records] == ["dropped"]


def test_the_time_without_a_journal_is_recorded_when_it_ends(tmp_path: Path) -> None:
    """Once the disk is back the journal itself says for how long, and why, it had not been written."""
    journaler, hand, now, run = make(tmp_path)
    journaler.note("first", {})
    hand.jobs.clear()
    journaler.delivered(OSError(28, "no space left on device"))
    now[0] += PATIENCE + RETRY
    journaler.tick()
    hand.jobs.pop()()
    journaler.delivered(None)
    hand.jobs.pop()()
    journaler.delivered(None)
    records = read_journal(run).records
    assert [r.event for r in records] == ["first", "unjournaled"]
    assert records[1].data["seconds"] >= PATIENCE
    assert "no space left" in records[1].data["reason"]


def test_a_chore_waits_once_for_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """When the run is unjournaled already no further record of a helper is waited for."""
    journaler, hand, now, _ = make(tmp_path)
    journaler.note("first", {})
    hand.jobs.clear()
    journaler.delivered(OSError(28, "no space left on device"))
    now[0] += PATIENCE
    passed = threading.Event()
    threading.Thread(
        target=lambda: (journaler.note_and_wait("dropped", {}), passed.set()), daemon=True
    ).start()
    assert passed.wait(60)


def test_time_that_stood_still_is_no_time_without_a_journal(tmp_path: Path) -> None:
    """A supervisor that was stopped in the middle of a write does not act before the record is on disk."""
    journaler, _, now, _ = make(tmp_path)
    number = journaler.note("attempt_started", {})
    now[0] += 3600
    journaler.stood_still(3600)
    assert not journaler.unjournaled
    assert not journaler.settled(number)


def test_what_waits_for_a_dead_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the records that a journal does not take only the latest are kept: a run goes on for weeks without one."""
    monkeypatch.setattr(journaler_module, "_KEPT", 5)
    run = RunDirectory(tmp_path / "run")
    run.create()
    hung: Any = type("Hung", (), {"submit": lambda *_: None})()
    journaler = Journaler(JournalWriter.open(run), hung)
    for number in range(20):
        journaler.note("event", {"number": number})
    assert journaler.waiting == 1 + 5  # one is being written
