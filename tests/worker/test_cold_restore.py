"""A restore from the disk: past the page cache, hashed by a thread behind, and as strict as any other."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast_jobs import durable
from outlast_jobs.contract import Schema
from outlast_jobs.direct import ALIGN
from outlast_jobs.errors import Corrupt
from outlast_jobs.generation import GenerationName, decode_index
from outlast_worker import behind
from outlast_worker.digest import first_difference
from outlast_worker.hugepages import HUGE
from outlast_worker.resident import is_on_disk_alone
from outlast_worker.restoring import read_generation
from outlast_worker.saving import IndexFields, save_generation


def state_of(sizes: Sequence[int]) -> dict[str, Any]:
    """A state with a tensor of each of these many bytes."""
    generator = torch.Generator().manual_seed(7)
    parts = {
        f"part{n}": torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
        for n, size in enumerate(sizes)
    }
    return {
        "schema": Schema.META,
        "parts": {"model": parts},
        "kinds": {"model": "stateful"},
        "counters": {"step": 1, "epoch": 0, "batch_in_epoch": 0},
        "losses": [],
        "rng": {},
        "extra": {},
    }


def sealed(folder: Path, state: dict[str, Any]) -> Path:
    (folder / ".writing-0001").mkdir()
    return save_generation(folder, GenerationName(1, 1), state, run_id="r1", fields=IndexFields()).path


def files_of(generation: Path) -> list[Path]:
    return [generation / name for name in decode_index((generation / "index.json").read_bytes()).files]


def forget(generation: Path) -> Path:
    """Have the kernel drop its copy of the largest file, which is given; skipped where it keeps it or does not say."""
    largest = max(files_of(generation), key=lambda path: path.stat().st_size)
    for path in files_of(generation):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if not on_disk_alone(largest):
        pytest.skip("this file system does not say what it has in memory")
    return largest


def on_disk_alone(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return is_on_disk_alone(fd, path.stat().st_size)
    finally:
        os.close(fd)


def hashing() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "outlast-hash"]


def test_what_lies_on_the_disk_alone_goes_past_the_page_cache(tmp_path: Path) -> None:
    """A cold generation is read without a copy in the page cache, and comes back as it was saved."""
    state = state_of([16 << 20])
    generation = sealed(tmp_path, state)
    largest = forget(generation)
    assert first_difference(state, read_generation(generation).state) is None
    assert on_disk_alone(largest)
    assert not hashing()


@pytest.mark.parametrize("odd", [0, 1, ALIGN - 1, ALIGN, ALIGN + 1, HUGE - 1])
def test_every_length_comes_back_from_the_disk(tmp_path: Path, odd: int) -> None:
    """Tensors that end within a page or a huge page, small ones between them, are read whole and in their place."""
    state = state_of([HUGE + odd, 100_000, 3 * HUGE - odd, 7, 2 * HUGE + odd])
    generation = sealed(tmp_path, state)
    forget(generation)
    assert first_difference(state, read_generation(generation).state) is None


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO, errno.ENOMEM])
def test_where_a_direct_read_is_refused_the_page_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A file system that takes O_DIRECT and then fails to read so, for any reason, costs a restore nothing but time."""
    state, refused = state_of([16 << 20]), []
    generation = sealed(tmp_path, state)
    forget(generation)
    real = durable.read_into

    def refusing(fd: int, buffer: memoryview) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(fd)
            raise OSError(code, os.strerror(code))
        return real(fd, buffer)

    monkeypatch.setattr(durable, "read_into", refusing)
    assert first_difference(state, read_generation(generation).state) is None
    assert refused


def test_what_a_direct_read_spoils_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation is not called corrupt for bytes that came wrong past the page cache, and are right in it."""
    state, spoilt = state_of([16 << 20]), []
    generation = sealed(tmp_path, state)
    forget(generation)
    real = durable.read_into

    def spoiling(fd: int, buffer: memoryview) -> int:
        got = real(fd, buffer)
        if not spoilt and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            spoilt.append(fd)
            buffer[0] ^= 1
        return got

    monkeypatch.setattr(durable, "read_into", spoiling)
    assert first_difference(state, read_generation(generation).state) is None
    assert spoilt


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("harm", [flip, lambda path: os.truncate(path, path.stat().st_size // 2)])
def test_a_cold_file_that_is_damaged_is_corrupt(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """A flipped bit or a missing half is found in what goes past the page cache too, and no thread is left."""
    generation = sealed(tmp_path, state_of([16 << 20]))
    harm(max(files_of(generation), key=lambda path: path.stat().st_size))
    forget(generation)
    with pytest.raises(Corrupt):
        read_generation(generation)
    assert not hashing()


def test_a_file_that_is_cut_while_it_is_fetched_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that go while they are fetched make it Corrupt, and the thread that hashes ends."""
    generation = sealed(tmp_path, state_of([16 << 20]))
    largest = forget(generation)
    real, cut = durable.read_into, []

    def cutting(fd: int, buffer: memoryview) -> int:
        if not cut and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            cut.append(fd)
            os.truncate(largest, 5 << 20)
        return real(fd, buffer)

    monkeypatch.setattr(durable, "read_into", cutting)
    with pytest.raises(Corrupt):
        read_generation(generation)
    assert cut
    assert not hashing()


def test_without_a_thread_to_hash_a_cold_restore_is_only_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system gives no more threads, what is fetched is hashed in between; damage is found all the same."""
    state = state_of([16 << 20])
    generation = sealed(tmp_path, state)
    monkeypatch.setattr(behind, "start_thread", lambda work, name: None)
    largest = forget(generation)
    assert first_difference(state, read_generation(generation).state) is None
    flip(largest)
    forget(generation)
    with pytest.raises(Corrupt):
        read_generation(generation)
