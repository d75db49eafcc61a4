"""A file of a generation that is linked from another one: the same file or none, and never through a link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outlast_jobs.blocks import Image
from outlast_jobs.claim import claim
from outlast_jobs.generation import FileEntry, GenerationName, Index
from outlast_jobs.hardlink import Stamp
from outlast_jobs.look import Verdict, look
from outlast_jobs.sealer import Sealer

CONTENT = b"abc" * 1_000_000


class _Bytes(Image):
    @property
    def size(self) -> int:
        return len(CONTENT)

    def block(self, start: int, scratch: memoryview) -> memoryview:
        scratch[:] = CONTENT[start : start + scratch.nbytes]
        return scratch


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    found = tmp_path / "run" / "checkpoints"
    found.mkdir(parents=True)
    claim(found, 1)
    return found


def _sealed(checkpoints: Path, step: int, source: Path | None = None) -> tuple[Path, FileEntry, Stamp]:
    sealer = Sealer(checkpoints, 1, GenerationName(step, 1))
    sealer.begin()
    sealer.add("meta.pt", b"m")
    entry = sealer.hashed(_Bytes())
    if source is None:
        assert sealer.add("big.pt", _Bytes()) == entry
    else:
        sealer.link("big.pt", source, entry, Stamp.of(os.stat(source / "big.pt")))
    path = sealer.seal(Index(run_id="r", attempt=1, step=step, healthy=True))
    return path, entry, Stamp.of(os.stat(path / "big.pt"))


def test_a_linked_file_is_the_same_file_and_verified_as_any(checkpoints: Path) -> None:
    """One inode in two generations, both whole; when one is deleted the other has it still."""
    first, _, stamp = _sealed(checkpoints, 1)
    second, _, linked = _sealed(checkpoints, 2, first)
    assert linked == stamp
    assert [look(path, "r", full=True).verdict for path in (first, second)] == [Verdict.VERIFIED] * 2
    for name in os.listdir(first):
        (first / name).unlink()
    assert look(second, "r", full=True).verdict is Verdict.VERIFIED


def test_what_is_not_the_file_that_was_written_is_not_linked(checkpoints: Path, tmp_path: Path) -> None:
    """Written to, replaced, a symbolic link, in a folder that became one, or gone: an error, and no file is left;
    it can be written then."""
    first, entry, stamp = _sealed(checkpoints, 1)
    big = first / "big.pt"
    sealer = Sealer(checkpoints, 1, GenerationName(2, 1))
    sealer.begin()

    def refused(code: int, folder: Path = first) -> None:
        with pytest.raises(OSError) as found:
            sealer.link("big.pt", folder, entry, stamp)
        assert found.value.errno == code
        assert os.listdir(sealer.folder) == []

    with big.open("r+b") as file:
        file.write(b"x")
    refused(errno.ESTALE)
    os.utime(big, ns=(0, stamp.mtime_ns))
    sealer.link("big.pt", first, entry, stamp)
    (sealer.folder / "big.pt").unlink()
    big.rename(first / "kept")
    refused(errno.ENOENT)
    big.write_bytes(CONTENT)
    refused(errno.ESTALE)
    away = tmp_path / "away"
    first.rename(away)
    first.symlink_to(away)
    refused(errno.ENOTDIR)
    assert sealer.add("big.pt", _Bytes()) == entry
    second, entry, stamp = _sealed(checkpoints, 3)
    with pytest.raises(FileExistsError):
        sealer.link("big.pt", second, entry, stamp)
