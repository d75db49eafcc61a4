"""Files whose length is known: each byte once, hashed as it goes, whatever the disk takes of direct writes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from outlast_jobs import blocks, durable, filesystem
from outlast_jobs.blocks import ALIGN, BLOCK, DIRECT_FROM, Image


class Bytes(Image):
    """An image of bytes that are there."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[int] = []

    @property
    def size(self) -> int:
        return len(self.content)

    def block(self, start: int, scratch: memoryview) -> memoryview:
        self.asked.append(start)
        scratch[:] = self.content[start : start + scratch.nbytes]
        return scratch


SIZES = [
    0,
    1,
    ALIGN - 1,
    DIRECT_FROM - 1,
    DIRECT_FROM,
    DIRECT_FROM + 1,
    BLOCK,
    BLOCK + ALIGN,
    2 * BLOCK + 777,
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("disk", ["here", "memory"])
def test_the_file_is_the_image(tmp_path: Path, disk: str, size: int) -> None:
    """Of any length, on a disk and on tmpfs: the bytes, their digest, their length, told piece by piece."""
    folder = tmp_path if disk == "here" else Path("/dev/shm") / f"outlast-blocks-{os.getpid()}-{size}"
    folder.mkdir(exist_ok=True)
    try:
        image, told = Bytes(os.urandom(size)), list[int]()
        written = durable.write_file(folder / "f", image, progress=told.append)
        found = (folder / "f").read_bytes()
        assert found == image.content
        assert written == durable.Written(size, hashlib.sha256(found).hexdigest())
        assert sum(told) == size
        assert image.asked == list(range(0, size, BLOCK))
    finally:
        if disk == "memory":
            shutil.rmtree(folder)


def test_a_local_disk_is_written_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the odd end of a large file goes direct where the disk takes it; a network's never does."""
    if not filesystem.on_local_disk(tmp_path):
        pytest.skip("no local disk here")
    seen: list[tuple[int, bool]] = []
    real = os.pwrite

    def watched(fd: int, data: memoryview, at: int) -> int:
        seen.append((data.nbytes, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)))
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", watched)
    durable.write_file(tmp_path / "local", Bytes(bytes(BLOCK + ALIGN + 5)))
    assert seen == [(BLOCK, True), (ALIGN, True), (5, False)]
    seen.clear()
    monkeypatch.setattr(durable, "on_local_disk", lambda path: False)
    durable.write_file(tmp_path / "network", Bytes(bytes(BLOCK + 5)))
    assert seen == [(BLOCK, False), (5, False)]


def test_a_disk_that_refuses_direct_writes_late_is_written_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL at a write, or a write that stops at an odd byte: the rest goes through the cache, and is whole."""
    real, left = os.pwrite, [BLOCK]

    def refusing(fd: int, data: memoryview, at: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            if not left:
                raise OSError(errno.EINVAL, "no")
            left.clear()
            return real(fd, data[: BLOCK // 2], at)
        return real(fd, data[:12345], at)

    monkeypatch.setattr(os, "pwrite", refusing)
    image = Bytes(os.urandom(BLOCK + 999))
    written = durable.write_file(tmp_path / "f", image)
    assert (tmp_path / "f").read_bytes() == image.content
    assert written.sha256 == hashlib.sha256(image.content).hexdigest()


@pytest.mark.parametrize("where", ["reserve", "write", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_what_the_disk_refuses_is_its_own_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, where: str
) -> None:
    """A full or broken disk, at any act: that error, and no partial file."""

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    if where == "reserve":
        monkeypatch.setattr(blocks, "_reserve", fail)
    else:
        monkeypatch.setattr(os, {"write": "pwrite", "fsync": "fsync"}[where], fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        durable.write_file(tmp_path / "f", Bytes(bytes(BLOCK + 1)))
    assert os.listdir(tmp_path) == []
