"""A run directory on which an operation is cut, what must hold right after, and what the next start makes of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.forked import Forked
from tests.faults.points import Point, points
from tests.faults.scripts.operate import JOB, SINGLE, Writer, desk_of, seal

from outlast_jobs import durable, events
from outlast_jobs.claim import claim, newest_claim
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import META, WRITING
from outlast_jobs.history import read_history
from outlast_jobs.journal import read_journal
from outlast_jobs.locks import Held, RunLock
from outlast_jobs.look import Verdict, look
from outlast_jobs.requests import read_requests
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import publish, read_checked
from outlast_jobs.verify import scan, set_aside
from outlast_supervisor import events as ev
from outlast_supervisor.actions import Choose
from outlast_supervisor.choosing import choose
from outlast_supervisor.chores import prune

DAMAGED = "step-000000350.a0001"
_LONG_AGO = 1_000_000_000
_DELETING = ("prune", "sweep")
_DAMAGING = ("quarantine", "start")
_HIDDEN = (durable.TEMPORARY, durable.TRASH, WRITING)


@dataclass(frozen=True)
class Stage:
    """The state of a run before an operation; each cut is tried on a copy."""

    run: RunDirectory
    run_id: str
    operation: str
    """One that operate.py knows."""
    whole: tuple[str, ...]
    """Its sound generations, newest first."""

    def arguments(self, run: RunDirectory) -> tuple[str, str, str]:
        """What operate.py is called with."""
        return self.operation, str(run.path), self.run_id

    def copy(self, folder: Path) -> RunDirectory:
        """The same once more."""
        shutil.copytree(self.run.path, folder, symlinks=True)
        return RunDirectory(folder)

    def listed(self, forked: Forked, folder: Path) -> list[Point]:
        """The calls of the operation on the run or to acknowledge; it is carried out once, on a copy."""
        found = points(forked.target(*self.arguments(self.copy(folder))))
        return [point for point in found if str(folder) in point.text or point.text.startswith("write(1<")]


def of_run(run: RunDirectory, folder: Path, operation: str) -> Stage:
    """A copy of a real run; for some operations its newest generation is damaged."""
    whole = tuple(path.name for path in scan(run.checkpoints))
    copied = Stage(run, run.read_run().run_id, operation, whole).copy(folder)
    if operation in _DAMAGING:
        meta = copied.checkpoints / whole[0] / META
        meta.write_bytes(meta.read_bytes()[:-1] + b"x")
    return Stage(copied, copied.read_run().run_id, operation, whole)


def stage(folder: Path, operation: str) -> Stage:
    """A run that was cut in a save and in a deletion, with three generations; for some operations one is damaged."""
    run = RunDirectory(folder)
    run_id = run.create().run.run_id
    claim(run.checkpoints, 1)
    whole = [seal(run, run_id, 1, step) for step in (100, 200, 300)]
    if operation in _DAMAGING:
        seal(run, run_id, 1, 350)
        (run.checkpoints / DAMAGED / META).write_bytes(b"x" * 1000)
    writer = Writer(run)
    writer.record("test", {"number": 0})
    writer.journal.close()
    run.write_status({"number": 1})
    publish(run.path / SINGLE, b"1" * 9000)
    run.attempt_log(1).write_text("log\n")
    run.attempt_metrics(1).write_text('{"step": 300}\n')
    unfinished = run.checkpoints / f"{WRITING}0001" / "step-000000400.a0001"
    unfinished.mkdir()
    (unfinished / META).write_bytes(b"m")
    (run.checkpoints / f"{durable.TRASH}old" / "folder").mkdir(parents=True)
    (run.checkpoints / f"{durable.TRASH}old" / "file").write_bytes(b"x")
    for place in (run.path, run.requests, run.checkpoints):
        (place / f"{durable.TEMPORARY}old").write_bytes(b"x")
        os.utime(place / f"{durable.TEMPORARY}old", (_LONG_AGO, _LONG_AGO))
    return Stage(run, run_id, operation, tuple(reversed(whole)))


def hold(stage: Stage, run: RunDirectory, acknowledged: Sequence[str]) -> None:
    """AssertionError where the disk does not hold what it must, wherever the operation was cut."""
    found = {path.name: look(path, stage.run_id, full=True) for path in scan(run.checkpoints)}
    for name, finding in found.items():
        assert finding.verdict is Verdict.VERIFIED or name == DAMAGED, f"{name}: {finding.reason}"
    newest = stage.whole[:1] if stage.operation in _DELETING else stage.whole
    assert set(newest) <= set(found), "a generation is gone that nobody dropped"
    said = [line.split() for line in acknowledged]
    journal = read_journal(run)
    assert not journal.damage, journal.damage
    assert journal.records[0].data == {"number": 0}
    recorded = {(r.life, r.data.get("number")) for r in journal.records if r.event == "test"}
    status, single = _number(run.read_status()), _single(run)
    asked = {request.id for request in read_requests(run)}
    answered = {r.data["id"] for r in journal.records if r.event == events.ANSWERED}
    for what, *words in said:
        there = {
            "sealed": lambda w: w[0] in found,
            "claimed": lambda w: newest_claim(run.checkpoints) >= int(w[0]),
            "dropped": lambda w: w[0] not in found,
            "aside": lambda w: [p.name for p in set_aside(run.checkpoints)] == [f"{w[0]}.corrupt-1"],
            "recorded": lambda w: (int(w[0]), int(w[1])) in recorded,
            "status": lambda w: status >= int(w[0]),
            "published": lambda w: single >= int(w[0]),
            "asked": lambda w: w[0] in asked | answered,
            "answered": lambda w: w[0] in answered,
        }.get(what, lambda w: True)
        assert there(words), f"acknowledged, and not on the disk: {what} {words}"
    assert status >= 1
    assert single >= 1
    told = {r.data["generation"] for r in journal.records if r.event in (events.DROPPED, events.QUARANTINED)}
    gone = set(stage.whole) - set(found) if stage.operation == "prune" else set()
    moved = {path.name.rpartition(".corrupt-")[0] for path in set_aside(run.checkpoints)}
    assert gone | moved <= told, "something was done before it was recorded"
    if stage.operation in _DAMAGING:
        kept = [p / META for p in run.checkpoints.iterdir() if p.name.startswith(DAMAGED)]
        assert len(kept) == 1, "what is bad is kept, once"
        assert kept[0].read_bytes() == b"x" * 1000
    assert run.read_run().run_id == stage.run_id


def go_on(stage: Stage, run: RunDirectory, acknowledged: Sequence[str]) -> None:
    """The next start chooses the newest sound generation, trains on, prunes, and nothing of the cut one is left."""
    expected = max(path.name for path in scan(run.checkpoints) if path.name != DAMAGED)
    let_time_pass(run)
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    assert run.create().run.run_id == stage.run_id
    desk = desk_of(run, stage.run_id)
    desk.claimed = desk.claiming = 0
    assert not run.sweep()
    read_history(run)
    attempt = run.highest_attempt() + 1
    found = choose(desk, JOB, Choose(attempt, "newest", False), None)
    assert isinstance(found, ev.Chosen), found
    assert (found.name, found.attempt) == (expected, attempt)
    newest = seal(run, stage.run_id, attempt, 600)
    desk.remembered[newest] = look(run.checkpoints / newest, stage.run_id, full=True).stats
    prune(desk, JOB, None)
    run.write_status({"number": 9})
    publish(run.path / SINGLE, b"9" * 9000)
    lock.release()
    assert [path.name for path in scan(run.checkpoints)] == [newest]
    assert (_number(run.read_status()), _single(run)) == (9, 9)
    assert sorted(litter(run)) == [f"{WRITING}{attempt:04d}"], "something is left of what was cut"


def litter(run: RunDirectory) -> Iterator[str]:
    """Names of what is half written or half deleted, anywhere in the run."""
    for _, folders, files in os.walk(run.path):
        yield from (name for name in [*folders, *files] if name.startswith(_HIDDEN))


def let_time_pass(run: RunDirectory) -> None:
    """A temporary file may be of a living command, so a start removes only those that are old."""
    for path in run.path.rglob(f"{durable.TEMPORARY}*"):
        os.utime(path, (time.time() - 3600,) * 2)


def _number(status: dict[str, object] | None) -> int:
    assert status is not None, "there was a status, and now there is none"
    number = status["number"]
    assert isinstance(number, int)
    return number


def _single(run: RunDirectory) -> int:
    try:
        data = bytes(read_checked(run.path / SINGLE))
    except (IntegrityError, FileNotFoundError) as error:
        raise AssertionError(f"no single file is valid: {error}") from error
    assert len(set(data)) == 1
    return int(data[:1])
