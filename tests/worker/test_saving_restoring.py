"""Saving and reading generations: what is read is what was saved, and nothing damaged or hostile loads."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast_jobs import durable
from outlast_jobs.blocks import Image
from outlast_jobs.claim import claim
from outlast_jobs.contract import Schema
from outlast_jobs.errors import (
    Corrupt,
    Fenced,
    Foreign,
    Incomplete,
    IntegrityError,
    UnknownSchema,
    Unreadable,
)
from outlast_jobs.generation import INDEX, INDEX_DIGEST, META, GenerationName, digest_line
from outlast_jobs.verify import Verdict, look
from outlast_worker import writing
from outlast_worker.digest import first_difference, state_sha256
from outlast_worker.parts import Parts
from outlast_worker.restoring import bad_report, digest_generation, read_generation
from outlast_worker.rng import capture_rng_state
from outlast_worker.saving import IndexFields, LoadBackFailed, Saved, save_generation
from outlast_worker.shards import Taken
from outlast_worker.typewalk import NotLoadable

NAME = GenerationName(7, 1)
FILES = [INDEX, INDEX_DIGEST, META, "model.shard-000.pt", "model.shard-001.pt"]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    claim(folder, 1)
    return folder


def whole_state() -> dict[str, Any]:
    """All buckets, with what tends to go wrong in each."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(60, 60, bias=False), torch.nn.Linear(60, 60, bias=False))
    net[1].weight = net[0].weight
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
    net(torch.randn(3, 60)).sum().backward()
    optimizer.step()
    scheduler.step()
    trees, kinds = Parts(
        {
            "model": net,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "noise": np.random.default_rng(3),
            "mt": np.random.Generator(np.random.MT19937(3)),
            "shuffle": random.Random(3),
            "generator": torch.Generator(),
        }
    ).capture()
    return {
        "schema": Schema.META,
        "parts": trees,
        "kinds": kinds,
        "counters": {"step": 7, "epoch": 1, "batch_in_epoch": 2},
        "losses": [[6, 0.5], [7, float("nan")]],
        "rng": capture_rng_state(),
        "extra": {"best": np.float32(0.1), "seen": {1, 2}, "view": torch.arange(1000.0)[3:5]},
    }


def save(checkpoints: Path, state: dict[str, Any] | None = None, **options: Any) -> Saved:
    options.setdefault("fields", IndexFields(reason="test"))
    return save_generation(checkpoints, NAME, state or whole_state(), run_id="r1", **options)


def reseal(path: Path, change: Callable[[dict[str, Any]], None] = lambda index: None) -> None:
    """Make index and digests right again over whatever the files are now."""
    index = json.loads((path / INDEX).read_text())
    for member, entry in index["files"].items():
        if (path / member).is_file():
            data = (path / member).read_bytes()
            entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    change(index)
    data = json.dumps(index).encode()
    (path / INDEX).write_bytes(data)
    (path / INDEX_DIGEST).write_bytes(digest_line(data))


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


@pytest.mark.parametrize("member", FILES)
def test_a_flipped_bit_in_any_file_is_refused(checkpoints: Path, member: str) -> None:
    """One bit flipped anywhere in any file, the index included, is Corrupt, with generation, file, reason."""
    path = save(checkpoints).path
    data = (path / member).read_bytes()
    for at in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        (path / member).write_bytes(damaged)
        with pytest.raises(Corrupt) as caught:
            read_generation(path)
        report = bad_report(caught.value)
        assert report["generation"] == path.name
        if member != INDEX:  # which of the two is wrong can't be known
            assert report["file"] == member
        assert report["reason"]
    (path / member).write_bytes(data)
    read_generation(path)


@pytest.mark.parametrize("member", FILES)
@pytest.mark.parametrize("damage", ["truncated", "empty", "zeros", "longer"])
def test_a_damaged_file_is_refused(checkpoints: Path, member: str, damage: str) -> None:
    """A file cut short, emptied, filled with zeros or grown is never loaded."""
    path = save(checkpoints).path
    data = (path / member).read_bytes()
    change = {"truncated": data[:-1], "empty": b"", "zeros": bytes(len(data)), "longer": data + b"\0"}
    (path / member).write_bytes(change[damage])
    with pytest.raises(IntegrityError):
        read_generation(path)


@pytest.mark.parametrize("member", FILES)
def test_a_missing_file_is_incomplete(checkpoints: Path, member: str) -> None:
    """Without any one of its files a generation is Incomplete, and the file is named."""
    path = save(checkpoints).path
    (path / member).unlink()
    with pytest.raises(Incomplete) as caught:
        read_generation(path)
    assert bad_report(caught.value)["file"] == member


@pytest.mark.parametrize("member", FILES)
def test_a_link_or_pipe_in_the_place_of_a_file_is_refused(checkpoints: Path, member: str) -> None:
    """A symbolic link isn't followed, though it leads to the right bytes, and a pipe isn't waited for."""
    path = save(checkpoints).path
    moved = path.parent / f"moved-{member}"
    (path / member).rename(moved)
    (path / member).symlink_to(moved)
    with pytest.raises(Corrupt, match="symbolic link"):
        read_generation(path)
    (path / member).unlink()
    os.mkfifo(path / member)
    with pytest.raises(Corrupt, match="pipe"):
        read_generation(path)


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("member", FILES[2:])
def test_a_hostile_pickle_runs_nothing(checkpoints: Path, tmp_path: Path, member: str) -> None:
    """A pickle that would run code is refused by the loader, even where every digest is right."""
    path = save(checkpoints).path
    torch.save({"schema": Schema.META, "x": Hostile(tmp_path / "owned")}, path / member)
    reseal(path)
    with pytest.raises(Corrupt, match="safe loader refuses") as caught:
        read_generation(path)
    assert bad_report(caught.value)["file"] == member
    assert "mkdir" in str(caught.value)
    assert not (tmp_path / "owned").exists()


def rewrite_meta(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    meta = torch.load(path / META, weights_only=True)
    meta = change(meta) or meta
    torch.save(meta, path / META)
    reseal(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: [1, 2],
        lambda meta: meta.pop("shards") and None,
        lambda meta: meta.update(shards=[1]),
        lambda meta: meta.update(shards=meta["shards"][:1]),
        lambda meta: meta.update(shards=list(reversed(meta["shards"]))),
        lambda meta: meta.update(shards=["../model.shard-000.pt"]),
        lambda meta: meta.update(shards=[*meta["shards"], "model.shard-002.pt"]),
        lambda meta: meta.update(shards=[META]),
        lambda meta: meta.pop("counters") and None,
        lambda meta: meta.update(parts=[]),
        lambda meta: meta["counters"].update(step=True),
        lambda meta: meta["counters"].update(step=8),
        lambda meta: meta["extra"].update(x={"__outlast__": "eval", "code": "1"}),
    ],
)
def test_a_meta_that_does_not_fit_is_refused(checkpoints: Path, change: Callable[[Any], Any]) -> None:
    """A meta.pt with right digests that lacks, misnames or contradicts something is an integrity error."""
    path = save(checkpoints).path
    rewrite_meta(path, change)
    with pytest.raises(IntegrityError):
        read_generation(path)


def test_an_unknown_schema_names_the_readable_ones(checkpoints: Path) -> None:
    """A meta.pt of another format isn't guessed at."""
    path = save(checkpoints).path
    rewrite_meta(path, lambda meta: meta.update(schema="outlast.meta/99"))
    with pytest.raises(UnknownSchema, match=r"outlast\.meta/99.*reads outlast\.meta/1"):
        read_generation(path)


@pytest.mark.parametrize("name", ["../evil.pt", "/etc/passwd", "a/b.pt", "", ".hidden", "x\0y"])
def test_an_index_that_names_files_elsewhere_is_refused(checkpoints: Path, name: str) -> None:
    """A name that could leave the folder is refused before anything under it is opened."""
    path = save(checkpoints).path
    reseal(path, lambda index: index["files"].update({name: {"bytes": 1, "sha256": "0" * 64}}))
    with pytest.raises(Corrupt):
        read_generation(path)


def test_a_foreign_run_is_refused_when_asked(checkpoints: Path) -> None:
    """A generation of another run is Foreign; with no run id any is read."""
    path = save(checkpoints).path
    with pytest.raises(Foreign, match="r2"):
        read_generation(path, run_id="r2")
    assert read_generation(path).index.run_id == "r1"


def test_a_surplus_member_must_match_too(checkpoints: Path) -> None:
    """A file that only the index names belongs to the whole: it is hashed, though nothing of it is used."""
    path = save(checkpoints).path
    (path / "notes.txt").write_bytes(b"hello")
    entry = {"bytes": 5, "sha256": hashlib.sha256(b"hello").hexdigest()}
    reseal(path, lambda index: index["files"].update({"notes.txt": entry}))
    read_generation(path)
    (path / "notes.txt").write_bytes(b"hellO")
    with pytest.raises(Corrupt, match=r"notes\.txt"):
        read_generation(path)


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


def test_minus_O_changes_nothing(checkpoints: Path, tmp_path: Path) -> None:
    """Without assert statements damage and hostile content are refused all the same."""
    path = save(checkpoints).path
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, pathlib\n"
        "from outlast_worker.restoring import read_generation\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "print(read_generation(path).index.step)\n"
        "for member in sorted(p.name for p in path.iterdir()):\n"
        "    data = (path / member).read_bytes()\n"
        "    bad = bytearray(data); bad[len(bad) // 2] ^= 1\n"
        "    (path / member).write_bytes(bad)\n"
        "    try: read_generation(path)\n"
        "    except ValueError as error: print(member, type(error).__name__)\n"
        "    (path / member).write_bytes(data)\n"
    )
    command = [sys.executable, "-O", str(script), str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["7", *[f"{member} Corrupt" for member in sorted(FILES)]]
