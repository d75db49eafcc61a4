"""Saving and reading generations: what is read is what was saved, and what fails leaves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.shortage import no_more_threads
from tests.worker.saved import FILES, NAME, save, whole_state

from outlast_jobs import durable
from outlast_jobs.blocks import Image
from outlast_jobs.claim import claim
from outlast_jobs.contract import Schema
from outlast_jobs.errors import (
    Fenced,
    IntegrityError,
    Unreadable,
)
from outlast_jobs.generation import META
from outlast_jobs.verify import Verdict, look
from outlast_worker import writing
from outlast_worker.digest import first_difference, state_sha256
from outlast_worker.restoring import digest_generation, read_generation
from outlast_worker.saving import IndexFields, LoadBackFailed
from outlast_worker.shards import Taken
from outlast_worker.typewalk import NotLoadable


def test_what_is_read_is_what_was_saved(checkpoints: Path) -> None:
    """Every bucket comes back bit for bit, and live and loaded state have one digest."""
    state = whole_state()
    saved = save(checkpoints, state, fields=IndexFields(final=True, reason="end"))
    loaded = read_generation(saved.path, run_id="r1")
    assert first_difference(state, loaded.state) is None
    assert state_sha256(state) == state_sha256(loaded.state) == digest_generation(saved.path)
    assert loaded.index.state_sha256 == saved.state_sha256 == state_sha256(state)
    assert loaded.name == NAME
    assert type(loaded.state["extra"]["best"]) is np.float32
    weights = loaded.state["parts"]["model"]
    assert weights["0.weight"].data_ptr() == weights["1.weight"].data_ptr()


def test_without_threads_a_state_is_saved_and_read_all_the_same(checkpoints: Path) -> None:
    """At the limit of processes a save and a restore take the thread that there is, and fail nobody's training."""
    state = whole_state()
    with no_more_threads():
        saved = save(checkpoints, state)
        loaded = read_generation(saved.path, run_id="r1")
    assert first_difference(state, loaded.state) is None
    assert look(saved.path, "r1", full=True).verdict is Verdict.VERIFIED


def test_the_index_says_what_a_reader_must_know(checkpoints: Path) -> None:
    """Counters, run, reason, health, identity and every file are in the index; a digest only if final."""
    fields = IndexFields(
        reason="asked",
        healthy=False,
        fingerprint={"torch": "x"},
        code={"sha256": "c"},
        config={"sha256": "f"},
        data={"sha256": "d"},
    )
    saved = save(checkpoints, fields=fields)
    index = read_generation(saved.path).index
    assert (index.step, index.epoch, index.batch_in_epoch, index.attempt, index.run_id) == (7, 1, 2, 1, "r1")
    assert (index.reason, index.healthy, index.final, index.state_sha256) == ("asked", False, False, None)
    assert (index.fingerprint, index.code, index.config, index.data) == (
        {"torch": "x"},
        {"sha256": "c"},
        {"sha256": "f"},
        {"sha256": "d"},
    )
    assert sorted(index.files) == sorted(FILES[2:])
    assert look(saved.path, "r1", full=True).verdict is Verdict.VERIFIED
    assert index.save_seconds > 0
    assert saved.bytes == sum(entry.stat().st_size for entry in saved.path.iterdir())


def test_every_file_loads_alone_with_plain_torch(checkpoints: Path) -> None:
    """meta.pt and the shards are plain .pt files for torch.load(weights_only=True)."""
    path = save(checkpoints).path
    meta = torch.load(path / META, weights_only=True)
    assert meta["schema"] == Schema.META
    assert meta["shards"] == FILES[3:]
    assert meta["rng"]["torch"].dtype is torch.uint8
    keys = [key for name in meta["shards"] for key in torch.load(path / name, weights_only=True)]
    assert {"model/0.weight", "model/1.weight", "optimizer/state/0/exp_avg", "extra/view"} <= set(keys)


def test_small_shards_hold_the_same_state(checkpoints: Path) -> None:
    """The limit of a shard changes the number of files and nothing else."""
    state = whole_state()
    saved = save(checkpoints, state, max_shard_bytes=1)
    assert len(list(saved.path.glob("model.shard-*.pt"))) > 4
    assert first_difference(state, read_generation(saved.path).state) is None


def test_progress_is_told_while_writing(checkpoints: Path) -> None:
    """The bytes written are told as they grow."""
    told: list[int] = []
    saved = save(checkpoints, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == saved.bytes


def test_what_would_not_load_is_not_begun(checkpoints: Path) -> None:
    """A value that the loader refuses is named by its part's path, and nothing is written."""
    state = whole_state()
    state["parts"]["scheduler"]["lr_lambdas"] = [{"a": len}]
    with pytest.raises(NotLoadable, match=r"^scheduler/lr_lambdas/0/a: builtin_function_or_method"):
        save(checkpoints, state)
    state = whole_state()
    state["extra"]["when"] = object()
    with pytest.raises(NotLoadable, match=r"^extra/when: object"):
        save(checkpoints, state)
    assert [entry.name for entry in checkpoints.iterdir()] == [".writing-0001"]


@pytest.mark.parametrize("call", range(1, 6))
def test_a_failed_write_leaves_nothing(checkpoints: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """An error of the disk at any file leaves no generation, no folder, and the next save works."""
    real, calls = durable.write_file, [0]

    def failing(path: Path, chunks: Any, **options: Any) -> durable.Written:
        calls[0] += 1
        if calls[0] == call:
            if isinstance(chunks, Image):
                chunks.block(0, memoryview(bytearray(min(chunks.size, 1000))))
            elif not isinstance(chunks, bytes):
                next(iter(chunks))
            raise OSError(28, "No space left on device")
        return real(path, chunks, **options)

    monkeypatch.setattr(durable, "write_file", failing)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoints)
    assert list(checkpoints.iterdir()) == [checkpoints / ".writing-0001"]
    assert list((checkpoints / ".writing-0001").iterdir()) == []
    monkeypatch.setattr(durable, "write_file", real)
    assert save(checkpoints).path.is_dir()


def test_a_stale_attempt_cannot_seal(checkpoints: Path) -> None:
    """Once a newer attempt has claimed the run, a save of the older one is fenced."""
    claim(checkpoints, 2)
    with pytest.raises(Fenced):
        save(checkpoints)


def test_load_back_compares_before_sealing(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With load_back a generation that doesn't load as it was saved is never sealed."""
    real = Taken.content

    def wrong(taken: Taken, number: int) -> dict[str, torch.Tensor]:
        found = real(taken, number)
        return {key: tensor + 1 if key == "model/0.weight" else tensor for key, tensor in found.items()}

    monkeypatch.setattr(writing, "image_of", lambda taken, number: None)
    monkeypatch.setattr(Taken, "content", wrong)
    with pytest.raises(LoadBackFailed, match=r"parts/model/0\.weight"):
        save(checkpoints, load_back=True)
    assert list(checkpoints.iterdir()) == [checkpoints / ".writing-0001"]
    monkeypatch.setattr(Taken, "content", real)
    assert save(checkpoints, load_back=True).state_sha256 is not None


def test_each_file_is_read_once(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded is the bytes that were hashed: no content is read a second time."""
    path = save(checkpoints).path
    real, read = durable.read_into, [0]

    def counting(fd: int, buffer: memoryview) -> int:
        got = real(fd, buffer)
        read[0] += got
        return got

    monkeypatch.setattr(durable, "read_into", counting)
    read_generation(path)
    assert read[0] == sum(entry.stat().st_size for entry in path.iterdir())


def test_an_io_error_says_nothing_about_the_content(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that fails is Unreadable, which is not an integrity error."""
    path = save(checkpoints).path
    real = durable.open_regular

    def failing(member: Any, **options: Any) -> int:
        if str(member).startswith("model.shard"):
            raise OSError(5, "Input/output error")
        return real(member, **options)

    monkeypatch.setattr(durable, "open_regular", failing)
    with pytest.raises(Unreadable):
        read_generation(path)
    assert not issubclass(Unreadable, IntegrityError)


def test_a_state_of_this_version_loads_for_ever() -> None:
    """The generation of schema 1 that is kept here loads with its digest, in every later version."""
    path = Path(__file__).parent / "data" / "step-000000007.a0001"
    loaded = read_generation(path)
    assert state_sha256(loaded.state) == loaded.index.state_sha256
    assert loaded.state["parts"]["optimizer"]["names"] == ["model.0.weight"]
    assert type(loaded.state["extra"]["best"]) is np.float32
    assert torch.equal(loaded.state["extra"]["view"], torch.tensor([3.0, 4.0]))
