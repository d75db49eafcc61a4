"""Retention on a real folder: what is not ours, or not whole, holds no place, and stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast_jobs import verify
from outlast_jobs.claim import claim
from outlast_jobs.generation import INDEX, GenerationName, Index
from outlast_jobs.jobfile import Job, job_from_command
from outlast_jobs.jobfile_model import Keep
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_supervisor.chores import Desk, prune

BASE = job_from_command(["true"], None, Path("/"))
JOB: Job = msgspec.structs.replace(BASE, keep=Keep(last=1))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    return Desk(run, run.create().run.run_id, lambda event, data: None)


def sealed(desk: Desk, step: int, attempt: int, run_id: str = "") -> str:
    """One generation, verified in full if it is the run's own."""
    checkpoints = desk.run.checkpoints
    if not (checkpoints / f".writing-{attempt:04d}").exists():
        claim(checkpoints, attempt)
        desk.claimed = desk.claiming = attempt
    sealer = Sealer(checkpoints, attempt, GenerationName(step, attempt))
    sealer.begin()
    sealer.add("meta.pt", b"m" * 100)
    path = sealer.seal(Index(run_id=run_id or desk.run_id, attempt=attempt, step=step, healthy=True))
    if not run_id:
        desk.remembered[path.name] = verify.look(path, desk.run_id, full=True).stats
    return path.name


def left(desk: Desk) -> set[str]:
    return {path.name for path in verify.scan(desk.run.checkpoints)}


def test_what_is_another_runs_or_not_whole_holds_no_place_and_is_not_deleted(desk: Desk) -> None:
    """However high its number: with `last: 1` the newest verified one of this run stays, and what is not ours."""
    older = sealed(desk, 4000, 1)
    stale = sealed(desk, 5000, 2, run_id="f" * 32)
    first, second = sealed(desk, 300, 3), sealed(desk, 310, 3)
    bad = sealed(desk, 320, 3)
    (desk.run.checkpoints / bad / INDEX).unlink()
    assert sorted(prune(desk, JOB, None)) == sorted([older, first])
    assert left(desk) == {stale, second, bad}
    assert prune(desk, JOB, None) == [], "applied again it drops nothing"


def test_where_the_newest_is_not_verified_the_one_before_stays(desk: Desk) -> None:
    """A seal that was not read back yet takes nobody's place: at each moment one verified generation is there."""
    first, second = sealed(desk, 10, 1), sealed(desk, 20, 1)
    desk.remembered.pop(second)
    assert prune(desk, JOB, None) == []
    assert left(desk) == {first, second}


def test_what_cannot_be_looked_at_stops_all_deletion(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error at one generation is no reason to delete another."""
    names = {sealed(desk, step, 1) for step in (10, 20, 30)}
    opened = os.open

    def failing(path: Any, *args: Any, **options: Any) -> int:
        if "step-000000020" in str(path):
            raise OSError(5, "Input/output error")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    assert prune(desk, JOB, None) == []
    monkeypatch.undo()
    assert left(desk) == names
    assert len(prune(desk, JOB, None)) == 2


def test_what_a_deletion_left_goes_with_the_next_one(desk: Desk) -> None:
    """A folder whose deletion failed keeps its room no longer than until the policy is applied again."""
    newest = sealed(desk, 10, 1)
    trash = desk.run.checkpoints / ".trash-step-000000005.a0001-abc"
    trash.mkdir()
    (trash / "meta.pt").write_bytes(b"m")
    assert prune(desk, JOB, None) == []
    assert left(desk) == {newest}
    assert not trash.exists()


def test_a_deletion_that_fails_once_is_done_all_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped is gone though a call failed; one that goes on failing is told, and what is kept stays."""
    first, second, third = (sealed(desk, step, 1) for step in (10, 20, 30))
    real, failures = os.unlink, [errno.EIO]

    def fails(*args: Any, **kwargs: Any) -> None:
        if failures:
            raise OSError(failures.pop(), "fails")
        real(*args, **kwargs)

    monkeypatch.setattr(os, "unlink", fails)
    assert sorted(prune(desk, JOB, None)) == [first, second]
    assert sorted(os.listdir(desk.run.checkpoints)) == [".writing-0001", third]
    newest = sealed(desk, 40, 1)
    failures += [errno.EIO] * 99
    with pytest.raises(OSError, match="fails"):
        prune(desk, JOB, None)
    assert left(desk) == {newest}
