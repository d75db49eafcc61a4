"""Fencing: once a newer attempt has claimed the run, an older one seals nothing, wherever it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.jobs.generations import index, seal, verdict

from outlast_jobs import durable
from outlast_jobs.claim import claim
from outlast_jobs.errors import Fenced
from outlast_jobs.generation import (
    GenerationName,
)
from outlast_jobs.sealer import Sealer
from outlast_jobs.verify import Verdict


def test_through_a_link_nothing_is_claimed(tmp_path: Path) -> None:
    """Where another run's folder stands in the place of this one's by a link, its writer keeps its right."""
    other, link = tmp_path / "other", tmp_path / "checkpoints"
    other.mkdir()
    claim(other, 1)
    link.symlink_to(other)
    with pytest.raises(NotADirectoryError):
        claim(link, 2)
    assert os.listdir(other) == [".writing-0001"]


@pytest.mark.parametrize("stage", ["begin", "add", "index", "seal"])
@pytest.mark.parametrize("claimed", [8, 12])
def test_a_stale_writer_is_fenced_at_every_stage(tmp_path: Path, stage: str, claimed: int) -> None:
    """Once a newer attempt has claimed, an older one can begin, write and seal nothing, and is told so."""
    claim(tmp_path, 7)
    old = seal(tmp_path, index(100, 7))
    sealer = Sealer(tmp_path, 7, GenerationName(500, 7))
    if stage != "begin":
        sealer.begin()
        sealer.add("meta.pt", b"m")
    if stage == "seal":
        # The index and all is written: only the rename is left, and it comes too late.
        real = durable.rename_to_free_name

        def late(source: Path, target: Path) -> None:
            assert claim(tmp_path, claimed) == [".writing-0007"]
            real(source, target)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable, "rename_to_free_name", late)
            with pytest.raises(Fenced, match="a newer attempt"):
                sealer.seal(index(500, 7))
    else:
        assert claim(tmp_path, claimed) == [".writing-0007"]
        acts: dict[str, Callable[[], object]] = {
            "begin": sealer.begin,
            "add": lambda: sealer.add("more.pt", b"m"),
            "index": lambda: sealer.seal(index(500, 7)),
        }
        with pytest.raises(Fenced, match=r"\.writing-0007"):
            acts[stage]()
    sealer.abort()
    assert sorted(os.listdir(tmp_path)) == [f".writing-{claimed:04d}", old.name]
    assert verdict(old) is Verdict.VERIFIED


def test_a_writer_that_remembers_the_folder_by_its_handle_is_fenced(tmp_path: Path) -> None:
    """A node whose cached handle outlives the rename finds the folder emptied: nothing can be published."""
    claim(tmp_path, 7)
    sealer = Sealer(tmp_path, 7, GenerationName(500, 7))
    sealer.begin()
    handle = os.open(sealer.folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    claim(tmp_path, 8)
    with pytest.raises(FileNotFoundError):
        os.rename(str(sealer.name), str(tmp_path / str(sealer.name)), src_dir_fd=handle)
    with pytest.raises(FileNotFoundError):
        os.mkdir("again", dir_fd=handle)
    os.close(handle)


def test_a_run_directory_that_is_gone_is_not_fencing(tmp_path: Path) -> None:
    """When all of ``checkpoints`` is gone or unmounted, the error is the system's."""
    sealer = Sealer(tmp_path / "gone", 7, GenerationName(5, 7))
    with pytest.raises(FileNotFoundError):
        sealer.begin()


def test_a_linked_writing_folder_is_not_written_through(tmp_path: Path) -> None:
    """A symbolic link in place of the writing folder stops the save before a byte lands elsewhere."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".writing-0007").symlink_to(tmp_path / "outside")
    with pytest.raises(Fenced, match="symbolic link"):
        Sealer(tmp_path / "checkpoints", 7, GenerationName(5, 7)).begin()
    assert claim(tmp_path / "checkpoints", 8) == [".writing-0007"]
    assert (tmp_path / "outside").is_dir()


def test_a_claim_is_refused_when_it_comes_late(tmp_path: Path) -> None:
    """The same number twice, or a lower one after a higher, is refused and takes nothing away."""
    claim(tmp_path, 7)
    sealer = Sealer(tmp_path, 7, GenerationName(5, 7))
    sealer.begin()
    sealer.add("meta.pt", b"m")
    for late in (7, 6, 1):
        with pytest.raises(Fenced):
            claim(tmp_path, late)
    assert sorted(os.listdir(tmp_path)) == [".writing-0007"]
    assert verdict(sealer.seal(index(5, 7))) is Verdict.VERIFIED


def test_a_claim_clears_whatever_calls_itself_writing(tmp_path: Path) -> None:
    """Odd leftovers of any kind under such a name are cleared, and no link is followed."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").touch()
    (tmp_path / ".writing-x").touch()
    (tmp_path / ".writing-").mkdir()
    (tmp_path / ".writing-0003").symlink_to("outside")
    claim(tmp_path, 4)
    assert sorted(os.listdir(tmp_path)) == [".writing-0004", "outside"]
    assert (tmp_path / "outside" / "f").exists()


def test_a_claim_is_durable_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent is synced once, after the last rename and the new folder, and before anything is deleted."""
    claim(tmp_path, 1)
    order: list[str] = []
    for owner, name in ((os, "rename"), (durable, "fsync_dir"), (durable, "delete_tree")):
        real = getattr(owner, name)

        def spy(*args: Path, real: Callable[..., object] = real, name: str = name, **by: object) -> object:
            order.append(name)
            return real(*args, **by)

        monkeypatch.setattr(owner, name, spy)
    claim(tmp_path, 2)
    assert order == ["rename", "fsync_dir", "delete_tree"]
