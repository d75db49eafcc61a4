"""A run that starts from another run's generation: each start does, until it has one of its own, and none after."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast_jobs import verify
from outlast_jobs.claim import claim
from outlast_jobs.generation import INDEX, GenerationName, Index
from outlast_jobs.jobfile import Job, job_from_command
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_jobs.verify import Verdict
from outlast_supervisor import choosing
from outlast_supervisor import events as ev
from outlast_supervisor.actions import Choose
from outlast_supervisor.chores import Desk

OTHER = "f" * 32


def sealed(checkpoints: Path, step: int, attempt: int, run_id: str) -> Path:
    sealer = Sealer(checkpoints, attempt, GenerationName(step, attempt))
    sealer.begin()
    sealer.add("meta.pt", b"m" * 100)
    return sealer.seal(Index(run_id=run_id, attempt=attempt, step=step, healthy=True))


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    """A generation of another run, with a higher attempt and step than any of ours."""
    (tmp_path / "pretrained").mkdir()
    claim(tmp_path / "pretrained", 30)
    return sealed(tmp_path / "pretrained", 9000, 30, OTHER)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    return run


def start(run: RunDirectory, warm: Path, attempt: int, forced: str | None = None) -> Any:
    """What a supervisor that knows nothing of the ones before chooses."""
    desk = Desk(run, run.create().run.run_id, lambda event, data: None)
    job: Job = msgspec.structs.replace(job_from_command(["true"], None, Path("/")), start_from=str(warm))
    return choosing.choose(desk, job, Choose(attempt, "newest", pass_over=False), forced)


def test_each_start_before_the_first_seal_starts_from_it_and_none_after(
    run: RunDirectory, warm: Path
) -> None:
    """However often the first attempts die, the next one starts there; an own generation ends that for good."""
    for attempt in (1, 2, 3):
        given = start(run, warm, attempt)
        assert (given.path, given.step, given.own) == (str(warm), 9000, False)
    own = sealed(run.checkpoints, 1, 3, run.create().run.run_id)
    assert start(run, warm, 4).path == str(own)
    warm.rename(warm.with_name("away"))
    assert start(run, warm, 5).path == str(own), "what is no longer needed may be gone"
    warm.with_name("away").rename(warm)
    (own / INDEX).unlink()
    for attempt in (6, 7):
        assert isinstance(start(run, warm, attempt), ev.Unusable), "what was trained is not begun anew unseen"


@pytest.mark.parametrize("harm", ["damaged", "incomplete", "gone"])
def test_a_bad_one_is_no_start_from_zero(run: RunDirectory, warm: Path, harm: str) -> None:
    """Where what a run is to start from cannot be used, nothing starts, and the reason names it; it stays there."""
    if harm == "damaged":
        (warm / "meta.pt").write_bytes(b"n" * 100)
    elif harm == "incomplete":
        (warm / "meta.pt").unlink()
    else:
        shutil.rmtree(warm)
    answer = start(run, warm, 1)
    assert isinstance(answer, ev.Unusable)
    assert str(warm) in answer.reason
    assert warm.is_dir() == (harm != "gone")


@pytest.mark.parametrize("how", ["name", "path", "relative path"])
@pytest.mark.parametrize("own", [True, False])
def test_what_is_named_is_used_if_it_is_whole(run: RunDirectory, warm: Path, own: bool, how: str) -> None:
    """By name or path, of this run or another: `--from` reads all of it first, for a worker that would not."""
    run_id = run.create().run.run_id
    claim(run.checkpoints, 3)
    named = sealed(run.checkpoints, 1, 3, run_id) if own else warm
    forced = {"name": named.name, "path": str(named), "relative path": os.path.relpath(named)}[how]
    if (own, how) == (False, "name"):
        assert isinstance(start(run, warm, 4, forced), ev.Unusable)
        return
    chosen = start(run, warm, 4, forced)
    assert (Path(chosen.path).resolve(), chosen.own) == (named, own)
    (named / "meta.pt").write_bytes(b"n" * 100)
    answer = start(run, warm, 5, forced)
    assert isinstance(answer, ev.Unusable)
    assert "meta.pt" in answer.reason


def test_one_that_cannot_be_looked_at_now_is_looked_at_again(
    run: RunDirectory, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails for a while says nothing of what a run is to start from: the run is not ended by it."""
    unreadable = msgspec.structs.replace(
        verify.look(warm, None, full=False), verdict=Verdict.UNREADABLE, reason="Input/output error"
    )
    monkeypatch.setattr(verify, "look", lambda *_, **__: unreadable)
    answer = start(run, warm, 1)
    assert isinstance(answer, ev.ChooseFailed)
    assert answer.unreadable == warm.name
