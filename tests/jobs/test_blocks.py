"""Files whose length is known: each byte once, hashed as it goes, whatever the disk takes of direct writes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_jobs import blocks, durable, filesystem
from outlast_jobs.blocks import BLOCK, Image
from outlast_jobs.direct import ALIGN, DIRECT_FROM


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


def _disk_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "outlast-disk"]


def test_blocks_are_made_ahead_of_the_disk_and_no_further_than_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a write hangs, others are made until all room is taken; none is overwritten before it is written."""
    monkeypatch.setattr(blocks, "BLOCK", ALIGN)
    hangs, real = threading.Event(), os.pwrite

    def hanging(fd: int, data: memoryview, at: int) -> int:
        assert hangs.wait(60)
        return real(fd, data, at)

    monkeypatch.setattr(os, "pwrite", hanging)
    image = Bytes(os.urandom(40 * ALIGN + 5))
    maker = threading.Thread(target=durable.write_file, args=(tmp_path / "f", image))
    maker.start()
    wait_until(lambda: len(image.asked) == blocks._RING, 60, "all room is taken")
    assert len(_disk_threads()) == 1
    hangs.set()
    maker.join()
    assert (tmp_path / "f").read_bytes() == image.content
    assert image.asked == list(range(0, image.size, ALIGN))
    assert not _disk_threads()


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("where", ["write", "progress", "image"])
def test_an_error_at_any_block_ends_the_file_and_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    """Raised to the caller as it is, with nothing left behind."""
    monkeypatch.setattr(blocks, "BLOCK", ALIGN)
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "no")

    real = os.pwrite

    def writing(fd: int, data: memoryview, at: int) -> int:
        if where == "write":
            count()
        return real(fd, data, at)

    class Failing(Bytes):
        def block(self, start: int, scratch: memoryview) -> memoryview:
            if where == "image":
                count()
            return super().block(start, scratch)

    monkeypatch.setattr(os, "pwrite", writing)
    with pytest.raises(OSError, match="no"):
        durable.write_file(
            tmp_path / "f",
            Failing(os.urandom(7 * ALIGN)),
            progress=(lambda _: count()) if where == "progress" else None,
        )
    assert os.listdir(tmp_path) == []
    assert not _disk_threads()


def test_without_a_second_thread_one_does_it_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no more threads the file is the same."""

    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(blocks, "BLOCK", ALIGN)
    monkeypatch.setattr(threading.Thread, "start", none)
    image = Bytes(os.urandom(9 * ALIGN + 1))
    durable.write_file(tmp_path / "f", image)
    assert (tmp_path / "f").read_bytes() == image.content


def huge_around(memory: memoryview | mmap.mmap) -> int:
    """Kilobytes in huge pages of the mapping that holds these bytes."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            first, last = (int(number, 16) for number in words[0].split("-"))
            inside = first <= address < last
        elif inside and words[0] == "AnonHugePages:":
            return int(words[1])
    return 0


def test_blocks_that_are_put_together_lie_in_huge_pages(tmp_path: Path) -> None:
    """Where this kernel gives any to memory that asks for them."""
    control = mmap.mmap(-1, 3 * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    control.madvise(mmap.MADV_HUGEPAGE)
    control[:] = bytes(3 * BLOCK)
    found = []

    class Looking(Bytes):
        def block(self, start: int, scratch: memoryview) -> memoryview:
            block = super().block(start, scratch)
            found.append(huge_around(block))
            return block

    durable.write_file(tmp_path / "file", Looking(bytes(2 * BLOCK)))
    assert bool(found[-1]) == bool(huge_around(control))


def test_a_kernel_without_huge_pages_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes are written from small ones."""
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)
    content = os.urandom(2 * BLOCK + 777)
    written = durable.write_file(tmp_path / "file", Bytes(content))
    assert (tmp_path / "file").read_bytes() == content
    assert written.sha256 == hashlib.sha256(content).hexdigest()
