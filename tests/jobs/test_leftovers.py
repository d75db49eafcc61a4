"""What killed writers left is removed by the next one, and nothing that somebody may still be writing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from outlast_jobs import leftovers
from outlast_jobs.leftovers import STALE, clear_beside, is_stale
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import digest_file, publish

LONG_AGO = time.time() - STALE - 100


def aged(path: Path) -> Path:
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_only_old_leftovers_of_the_same_name_are_removed(tmp_path: Path) -> None:
    """By name and by age: another file's, a young one, and what only looks like one stay."""
    old, young = tmp_path / ".tmp-ckpt.pt-0123456789ab", tmp_path / ".tmp-ckpt.pt-ba9876543210"
    others = [
        tmp_path / name
        for name in (".tmp-ckpt.pt", ".tmp-last.pt-0123456789ab", ".tmp-ckpt.pt-mine", "ckpt.pt")
    ]
    for path in (old, young, *others):
        path.write_bytes(b"x")
    for path in (old, *others):
        aged(path)
    clear_beside(tmp_path / "ckpt.pt")
    assert sorted(tmp_path.iterdir()) == sorted([young, *others])


def test_a_folder_is_old_when_all_in_it_is(tmp_path: Path) -> None:
    """A shard that is still written keeps its folder."""
    folder = tmp_path / ".tmp-step-1-0123456789ab"
    folder.mkdir()
    (folder / "shard").write_bytes(b"x")
    aged(folder)
    assert not is_stale(folder)
    clear_beside(tmp_path / "step-1")
    assert folder.exists()
    aged(folder / "shard")
    aged(folder)
    clear_beside(tmp_path / "step-1")
    assert not folder.exists()


@pytest.mark.parametrize("skew", [-86_400.0, 86_400.0])
def test_age_is_told_by_the_file_systems_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """On a host whose clock is a day off nothing that is being written is removed, and no file is left by looking."""
    run = RunDirectory(tmp_path)
    run.create()
    young = tmp_path / ".tmp-job.yaml-0123456789ab"
    young.write_bytes(b"x")
    before = sorted(tmp_path.iterdir())
    real = time.time
    monkeypatch.setattr(leftovers.time, "time", lambda: real() + skew)
    assert run.sweep() == []
    assert sorted(tmp_path.iterdir()) == before


def test_what_lies_in_the_future_is_nobodys(tmp_path: Path) -> None:
    """A leftover of a clock that was a day ahead and was set back is removed as any other."""
    left, ahead = tmp_path / ".tmp-ckpt.pt-0123456789ab", time.time() + 86_400
    left.write_bytes(b"x")
    os.utime(left, (ahead, ahead))
    clear_beside(tmp_path / "ckpt.pt")
    assert not list(tmp_path.iterdir())


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    """What lies beyond it is not ours."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_bytes(b"x")
    link = tmp_path / ".tmp-ckpt.pt-0123456789ab"
    link.symlink_to(tmp_path / "other")
    os.utime(link, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    clear_beside(tmp_path / "ckpt.pt")
    assert not link.is_symlink()
    assert (tmp_path / "other" / "precious").exists()


def test_a_folder_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    """Leftovers cost space and nothing else."""
    clear_beside(tmp_path / "missing" / "ckpt.pt")


@pytest.mark.parametrize("name", ["ckpt.pt", "n" * 80 + ".pt"])
def test_a_save_removes_what_killed_saves_of_its_file_left(tmp_path: Path, name: str) -> None:
    """Of the file and of its digest; without a supervisor nobody else would."""
    path = tmp_path / name
    publish(path, b"one")
    for target in (path, digest_file(path)):
        aged_one = tmp_path / f".tmp-{target.name[:50]}-0123456789ab"
        aged_one.write_bytes(b"x" * 1000)
        aged(aged_one)
    publish(path, b"two")
    assert sorted(tmp_path.iterdir()) == [path, digest_file(path)]


def test_a_start_removes_unfinished_folders_too(tmp_path: Path) -> None:
    """A sharded checkpoint that a script saves into the run directory by itself is a folder."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    folder = run.path / ".tmp-mine-0123456789ab"
    folder.mkdir()
    (folder / "shard").write_bytes(b"x")
    assert run.sweep() == []
    assert folder.exists()
    aged(folder / "shard")
    aged(folder)
    assert run.sweep() == []
    assert not folder.exists()
