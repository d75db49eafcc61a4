"""Reading generations that are damaged, hostile or another run's: none of it loads, and the reason is said."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.worker.saved import FILES, reseal, save

from outlast_jobs.contract import Schema
from outlast_jobs.errors import (
    Corrupt,
    Foreign,
    Incomplete,
    IntegrityError,
    UnknownSchema,
)
from outlast_jobs.generation import INDEX, META
from outlast_worker.atomic import deserialized
from outlast_worker.ptfile import UnsafeTorch
from outlast_worker.restoring import bad_report, read_generation


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


def test_values_of_a_type_that_only_another_torch_has_are_no_damage(checkpoints: Path) -> None:
    """A file whose digest is right, with a type that this torch does not know, is not to be set aside as corrupt."""
    path = save(checkpoints).path
    file = io.BytesIO()
    torch.save({"schema": Schema.META, "x": torch.bfloat16}, file, _use_new_zipfile_serialization=False)
    (path / META).write_bytes(file.getvalue().replace(b"bfloat16", b"gfloat16"))
    reseal(path)
    with pytest.raises(
        UnsafeTorch, match=r"torch\.gfloat16, which torch .* does not have; resume with the torch"
    ):
        read_generation(path)
    with pytest.raises(UnsafeTorch, match=r"'a\.pt' has values of torch\.gfloat16"):
        deserialized((path / META).read_bytes(), "a.pt")


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
