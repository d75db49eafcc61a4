"""Shared memory in huge pages: its place, its bytes and its end are as of any other, whatever the kernel gives."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest

from outlast_worker.buffer import Buffer
from outlast_worker.hugepages import HUGE, map_shared, put_together

SIZE = 3 * HUGE


@pytest.fixture
def fd() -> int:
    found = os.memfd_create("huge")
    os.ftruncate(found, SIZE)
    return found


def huge_bytes(fd: int) -> int:
    """Bytes of the mappings of this file that the kernel says lie in huge pages."""
    inode = str(os.fstat(fd).st_ino)
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if re.match(r"[0-9a-f]+-[0-9a-f]+$", words[0]):
            ours = words[4] == inode and "memfd" in line
        elif ours and words[0] == "ShmemPmdMapped:":
            total += int(words[1]) << 10
    return total


def mapped(fd: int) -> int:
    """How many mappings of this file the process has."""
    target = str(os.fstat(fd).st_ino)
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(1 for line in lines if line.split()[4] == target and "memfd" in line)


def test_it_is_the_file_behind_the_descriptor_as_long_as_there_is_a_view(fd: int) -> None:
    """What is written is seen through the descriptor and back; no mapping stays behind the last view."""
    view = map_shared(fd, SIZE)
    assert len(view) == SIZE
    assert ctypes.addressof(ctypes.c_char.from_buffer(view)) % HUGE == 0
    part = view[HUGE - 3 : HUGE + 3]
    del view
    part[:] = b"abcdef"
    assert os.pread(fd, 6, HUGE - 3) == b"abcdef"
    os.pwrite(fd, b"xyz", HUGE)
    assert bytes(part[3:]) == b"xyz"
    assert mapped(fd) == 1
    del part
    assert mapped(fd) == 0


def test_what_is_there_stays_when_pages_are_put_together(fd: int) -> None:
    """Bytes written before, by us or by others, are the same afterwards; where it is said, the pages are huge."""
    content = os.urandom(SIZE)
    os.pwrite(fd, content, 0)
    view = map_shared(fd, SIZE)
    told = put_together(view)
    assert bytes(view) == content
    assert os.pread(fd, SIZE, 0) == content
    assert huge_bytes(fd) == SIZE or not told
    view[:5] = b"after"
    assert os.pread(fd, 5, 0) == b"after"


def test_a_buffer_lies_in_them_as_far_as_whole_ones_go(fd: int) -> None:
    """One of three and a half has three where this kernel gives any, and once touched all of it is there."""
    given = put_together(map_shared(fd, SIZE))
    buffer = Buffer(SIZE + HUGE // 2)
    buffer.touch()
    assert huge_bytes(buffer.fd) == (SIZE if given else 0)
    assert os.fstat(buffer.fd).st_blocks * 512 >= buffer.size


def test_a_kernel_that_does_not_know_it_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it says so, and the buffer is touched as before."""
    monkeypatch.setattr("outlast_worker.hugepages._COLLAPSE", 9999)
    buffer = Buffer(SIZE)
    assert not put_together(buffer.view)
    buffer.touch()
    assert huge_bytes(buffer.fd) == 0
    assert os.fstat(buffer.fd).st_blocks * 512 >= SIZE


def test_nothing_is_put_together_of_nothing() -> None:
    """An empty view is no error."""
    assert put_together(memoryview(bytearray()))


def test_what_cannot_be_mapped_is_an_oserror() -> None:
    """A descriptor that is none, and one that may not be written to."""
    with pytest.raises(OSError, match="Bad file"):
        map_shared(9999, SIZE)
    with open(__file__, "rb") as file, pytest.raises(OSError, match="denied"):
        map_shared(file.fileno(), 4096)
