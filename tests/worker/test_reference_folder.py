"""A folder of checkpoints: saved when due by steps or by seconds, the last few kept, the newest whole one used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.worker.reference_net import Small

from outlast_jobs.errors import Corrupt
from outlast_jobs.look import Verdict
from outlast_worker import CheckpointFolder, Keep, TrainState, folder
from outlast_worker.parts import PartError
from outlast_worker.sharding import Strategy

KINDS: list[Strategy | None] = [None, "round_robin"]

pytestmark = pytest.mark.usefixtures("own_streams")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time that the folder sees."""
    now = [1000.0]
    monkeypatch.setattr(folder.time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def train(run: Small, checkpoints: CheckpointFolder, steps: int) -> None:
    for _ in range(steps):
        run.train(1)
        if checkpoints.due(run.state.step):
            checkpoints.save(*run.four, parts={"noise": run.noise})


def resume(run: Small, checkpoints: CheckpointFolder) -> TrainState:
    return checkpoints.resume(*run.three, parts={"noise": run.noise})


def names(checkpoints: CheckpointFolder) -> list[str]:
    return [path.name.removesuffix(".pt") for path in checkpoints.checkpoints()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_ones_are_kept(tmp_path: Path, kind: Strategy | None) -> None:
    """Saved every two steps with keep.last 2, the two newest are there at the end, and nothing else."""
    checkpoints = CheckpointFolder(tmp_path / "c", every_steps=2, keep=Keep(last=2), strategy=kind)
    train(Small(steps=0), checkpoints, 9)
    assert names(checkpoints) == ["step-000000008.a0001", "step-000000006.a0001"]
    assert len(os.listdir(tmp_path / "c")) == (4 if kind is None else 2)


def test_seconds_or_steps_whichever_comes_first(tmp_path: Path, clock: Callable[[float], None]) -> None:
    """A save is due after so many steps or so many seconds since the last one, and not before."""
    checkpoints = CheckpointFolder(tmp_path, every_steps=100, every_seconds=60)
    run = Small(steps=0)
    run.train(5)
    clock(59)
    assert checkpoints.due(5) is None
    clock(1)
    assert checkpoints.due(5) == "every 60 s"
    checkpoints.save(*run.four)
    assert checkpoints.due(5) is None
    assert checkpoints.due(99) is None
    assert checkpoints.due(100) == "every 100 steps"


def test_without_a_cadence_nothing_is_due(tmp_path: Path) -> None:
    """With neither steps nor seconds the script saves when it likes."""
    assert CheckpointFolder(tmp_path).due(1000) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_the_newest(tmp_path: Path, kind: Strategy | None) -> None:
    """A new process resumes at the newest checkpoint, and what it saves comes after all that was there."""
    run = Small(steps=0)
    train(run, CheckpointFolder(tmp_path, every_steps=2, strategy=kind), 4)
    expected = run.train(2)
    again = Small(seed=2, steps=0)
    checkpoints = CheckpointFolder(tmp_path, every_steps=2, strategy=kind)
    again.state = resume(again, checkpoints)
    assert again.state.step == 4
    assert again.train(2) == expected
    checkpoints.save(*again.four)
    assert names(checkpoints)[0] == "step-000000006.a0002"


def test_an_empty_folder_begins_a_run(tmp_path: Path) -> None:
    """Where there is no checkpoint, resuming gives a state at step 0 and changes nothing."""
    run = Small()
    before = run.net[0].weight.tolist()
    assert CheckpointFolder(tmp_path / "new").resume(*run.three).step == 0
    assert run.net[0].weight.tolist() == before


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_ones_are_named_and_passed_over(
    tmp_path: Path, kind: Strategy | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a start the newest whole checkpoint is used; newer ones that aren't whole are named, and stay."""
    train(Small(steps=0), CheckpointFolder(tmp_path, every_steps=1, strategy=kind), 3)
    checkpoints = CheckpointFolder(tmp_path)
    newest, second, third = checkpoints.checkpoints()
    for path in (newest, second):
        file = path / "meta.pt" if path.is_dir() else path
        file.write_bytes(file.read_bytes()[:-1])
    assert [finding.verdict for finding in checkpoints.verify()] == [
        Verdict.CORRUPT,
        Verdict.CORRUPT,
        Verdict.VERIFIED,
    ]
    assert resume(Small(seed=2, steps=0), checkpoints).step == 1
    told = capsys.readouterr().err
    assert newest.name in told
    assert second.name in told
    assert newest.exists()
    file = third / "index.json" if third.is_dir() else third
    file.write_bytes(b"")
    with pytest.raises(Corrupt, match=r"none of 3 checkpoints in .* is whole"):
        checkpoints.resume(*Small().three)


def test_a_checkpoint_of_another_model_is_not_passed_over(tmp_path: Path) -> None:
    """One that is whole and does not fit is an error: an older one would not fit either."""
    CheckpointFolder(tmp_path).save(*Small(hidden=5).four)
    with pytest.raises(PartError):
        CheckpointFolder(tmp_path).resume(*Small().three)


def test_damaged_ones_take_no_place_of_the_kept(tmp_path: Path) -> None:
    """Of the kept ones all are whole; the newest whole one and the one resumed from are never dropped."""
    train(Small(steps=0), CheckpointFolder(tmp_path, every_steps=1, keep=Keep(last=9)), 4)
    checkpoints = CheckpointFolder(tmp_path, keep=Keep(last=1))
    for path in checkpoints.checkpoints()[:2]:
        path.write_bytes(b"")
    run = Small(seed=2, steps=0)
    run.state = resume(run, checkpoints)
    run.train(1)
    checkpoints.save(*run.four)
    assert names(checkpoints) == ["step-000000003.a0002", "step-000000002.a0001"]


def test_max_bytes_is_kept_and_every_steps_thinned(tmp_path: Path) -> None:
    """A budget of bytes drops the oldest first, and never the newest; every_steps keeps milestones."""
    run = Small(steps=0)
    checkpoints = CheckpointFolder(tmp_path / "a", every_steps=1, keep=Keep(last=9, max_bytes=1))
    train(run, checkpoints, 3)
    assert names(checkpoints) == ["step-000000003.a0001"]
    milestones = CheckpointFolder(tmp_path / "b", every_steps=1, keep=Keep(last=1, every_steps=3))
    train(Small(steps=0), milestones, 7)
    assert [name[5:14] for name in names(milestones)] == ["000000007", "000000006", "000000003"]


def test_leftovers_of_a_killed_save_are_removed(tmp_path: Path) -> None:
    """What a killed save or deletion left is gone after the next start."""
    (tmp_path / ".tmp-step-000000001.a0001.pt-abc").write_bytes(b"x")
    (tmp_path / ".trash-old").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    CheckpointFolder(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_twice_at_a_step_it_is_saved_once(tmp_path: Path, kind: Strategy | None) -> None:
    """A second save of the same step by the same process keeps the first."""
    run, checkpoints = Small(), CheckpointFolder(tmp_path, strategy=kind)
    assert checkpoints.save(*run.four) == checkpoints.save(*run.four)
    assert len(checkpoints.checkpoints()) == 1


def test_the_shards_are_as_asked(tmp_path: Path) -> None:
    """Strategy and number of shards reach the checkpoint."""
    options: dict[str, Any] = {"strategy": "size", "num_shards": 4}
    path = CheckpointFolder(tmp_path, **options).save(*Small().four)
    extra = json.loads((path / "index.json").read_text())["extra"]
    assert (extra["strategy"], extra["num_shards"]) == ("size", 4)
