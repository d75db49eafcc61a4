"""The verdict on damaged and hostile generations: none passes, none is waited for, and each says why."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest
from tests.jobs.generations import ALL, FILES, RUN, SHARD, checked, flip, rewrite_index, save

from outlast_jobs import durable
from outlast_jobs.generation import INDEX, INDEX_DIGEST, digest_line
from outlast_jobs.verify import (
    Verdict,
    look,
    scan,
    stats_of,
)


def test_a_good_one_is_verified(tmp_path: Path) -> None:
    """A sealed generation is verified in full, with its index, bytes, and what to remember."""
    path = save(tmp_path, 500)
    found = checked(path)
    assert (found.verdict, found.full) == (Verdict.VERIFIED, True)
    assert found.reason == "all 2 files match their sha256"
    assert (found.step, found.attempt) == (500, 1)
    assert found.index is not None
    assert found.bytes == sum(map(len, FILES.values()))
    assert found.stats == stats_of(path, found.index)
    assert set(found.stats) == set(ALL)


@pytest.mark.parametrize("member", ALL)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_anywhere_is_corrupt(tmp_path: Path, member: str, where: str) -> None:
    """One bit in any file, the index and its digest too, is found and the file is named."""
    path = save(tmp_path, 500)
    content = (path / member).read_bytes()
    at = {"first": 0, "middle": len(content) // 2, "last": len(content) - 1}[where]
    (path / member).write_bytes(flip(content, at))
    found = checked(path)
    assert found.verdict is Verdict.CORRUPT
    assert member in found.reason or INDEX in found.reason
    assert not found.full


@pytest.mark.parametrize("member", FILES)
def test_a_mismatch_names_the_file_and_both_digests(tmp_path: Path, member: str) -> None:
    """The reason of a mismatch has the file, what it has and what it should have."""
    path = save(tmp_path, 500)
    wrong = flip(FILES[member], 77)
    (path / member).write_bytes(wrong)
    have, want = hashlib.sha256(wrong).hexdigest(), hashlib.sha256(FILES[member]).hexdigest()
    assert checked(path).reason == f"{member!r} has sha256 {have}, the index says {want}"


def test_a_changed_index_names_both_digests(tmp_path: Path) -> None:
    """An index that isn't the one sealed is corrupt by its digest, before a word of it is believed."""
    path = save(tmp_path, 500)
    data = (path / INDEX).read_bytes()
    wrong = data.replace(b'"healthy": true', b'"healthy":false')
    (path / INDEX).write_bytes(wrong)
    have, want = hashlib.sha256(wrong).hexdigest(), hashlib.sha256(data).hexdigest()
    found = checked(path)
    assert found.reason == f"'index.json' has sha256 {have}, 'index.json.sha256' says {want}"
    assert found.index is None


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("member", ALL)
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "missing"])
def test_wrong_lengths_and_missing_files(tmp_path: Path, member: str, damage: str, full: bool) -> None:
    """A cut, grown or empty file is corrupt and a missing one incomplete, without hashing too."""
    path = save(tmp_path, 500)
    content = (path / member).read_bytes()
    if damage == "missing":
        (path / member).unlink()
    else:
        changed = {"cut": content[: len(content) // 2], "longer": content + b"\0", "empty": b""}[damage]
        (path / member).write_bytes(changed)
    found = checked(path, full=full)
    assert found.verdict is (Verdict.INCOMPLETE if damage == "missing" else Verdict.CORRUPT)
    assert member in found.reason


@pytest.mark.parametrize("member", ALL)
def test_zero_filled_files_are_corrupt(tmp_path: Path, member: str) -> None:
    """Right names and right lengths full of zeros, as a power cut leaves them, don't pass."""
    path = save(tmp_path, 500)
    (path / member).write_bytes(bytes((path / member).stat().st_size))
    assert checked(path).verdict is Verdict.CORRUPT


def test_a_set_of_empty_files_is_corrupt(tmp_path: Path) -> None:
    """Names that survived a power cut without their data don't pass; an empty folder is incomplete."""
    path = save(tmp_path, 500)
    for member in ALL:
        (path / member).write_bytes(b"")
    assert checked(path).verdict is Verdict.CORRUPT
    for member in ALL:
        (path / member).unlink()
    assert checked(path).verdict is Verdict.INCOMPLETE
    path.rmdir()
    assert checked(path).verdict is Verdict.INCOMPLETE


def test_without_full_the_finding_says_so(tmp_path: Path) -> None:
    """A look at lengths alone is marked, since a flipped bit passes it."""
    path = save(tmp_path, 500)
    (path / SHARD).write_bytes(flip(FILES[SHARD], 5))
    found = checked(path, full=False)
    assert (found.verdict, found.full) == (Verdict.VERIFIED, False)
    assert found.reason == "index and lengths match, contents not read"


def test_surplus_files_are_named_and_allowed(tmp_path: Path) -> None:
    """What the index doesn't name does no harm and is mentioned."""
    path = save(tmp_path, 500)
    for name in ("a.txt", "b.txt", "c.txt", "d\n.txt"):
        (path / name).touch()
    found = checked(path)
    assert found.verdict is Verdict.VERIFIED
    assert found.reason.endswith("; also holds 'a.txt', 'b.txt', 'c.txt' and 1 more, not in the index")


def test_another_runs_generation_is_foreign(tmp_path: Path) -> None:
    """A generation with another run id is foreign, both ids named; where any run will do, it is good."""
    path = save(tmp_path, 500, run="f" * 32)
    found = checked(path)
    assert (found.verdict, found.reason) == (
        Verdict.FOREIGN,
        f"it belongs to run '{'f' * 32}', this is run '{RUN}'",
    )
    assert look(path, None, full=True).verdict is Verdict.VERIFIED


def test_a_later_format_is_left_alone(tmp_path: Path) -> None:
    """An intact index of an unknown schema is foreign, not corrupt, and the readable ones are named."""
    path = save(tmp_path, 500)
    rewrite_index(path, schema="outlast.generation/2")
    found = checked(path)
    assert found.verdict is Verdict.FOREIGN
    assert "has schema 'outlast.generation/2', this version reads outlast.generation/1" in found.reason


def test_a_generation_under_anothers_name_is_corrupt(tmp_path: Path) -> None:
    """A folder that was renamed by hand doesn't pass for another step; under a free name it is looked at."""
    path = save(tmp_path, 500)
    wrong = path.rename(tmp_path / "step-000000900.a0001")
    found = checked(wrong)
    assert found.verdict is Verdict.CORRUPT
    assert "is of step 500 by attempt 1, but the folder is called 'step-000000900.a0001'" in found.reason
    found = checked(wrong.rename(tmp_path / "exported"))
    assert (found.verdict, found.name, found.step) == (Verdict.VERIFIED, None, 500)


@pytest.mark.parametrize("name", ["../other/shard.pt", "/etc/passwd", "..", "sub/f.pt", ".hidden", "a\0b"])
def test_names_that_leave_the_folder_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index with an unsafe name is corrupt, and nothing but the index was opened."""
    path = save(tmp_path, 500)
    rewrite_index(path, files={name: {"bytes": 1, "sha256": "a" * 64}})
    opened: list[str] = []
    real = durable.open_regular

    def spy(path: str | Path, *, dir_fd: int | None = None) -> int:
        opened.append(str(path))
        return real(path, dir_fd=dir_fd)

    monkeypatch.setattr(durable, "open_regular", spy)
    found = checked(path)
    assert found.verdict is Verdict.CORRUPT
    assert f"unsafe file name {name!r}" in found.reason
    assert set(opened) == {INDEX, INDEX_DIGEST}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("member", ALL)
@pytest.mark.parametrize("kind", ["link to the same bytes", "dangling link", "pipe", "folder", "device"])
def test_only_regular_files_pass(tmp_path: Path, member: str, kind: str) -> None:
    """A link, even to the right bytes, a pipe, a folder or a device is corrupt, at once."""
    path = save(tmp_path, 500)
    file = path / member
    if kind == "link to the same bytes":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        if kind == "dangling link":
            file.symlink_to("nowhere")
        elif kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        else:
            try:
                os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 5))
            except PermissionError:
                pytest.skip("only root makes device files")
    for full in (True, False):
        found = checked(path, full=full)
        assert found.verdict is Verdict.CORRUPT
        assert re.fullmatch(f"{member!r} is a .*, not a regular file", found.reason)


def test_a_linked_folder_is_listed_and_refused(tmp_path: Path) -> None:
    """A link to a good generation under a generation's name is found, is corrupt, and is not followed."""
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "checkpoints").mkdir()
    link = tmp_path / "checkpoints" / "step-000000500.a0001"
    link.symlink_to(save(other, 500))
    assert scan(tmp_path / "checkpoints") == [link]
    found = checked(link)
    assert (found.verdict, found.reason) == (
        Verdict.CORRUPT,
        "'step-000000500.a0001' is not a folder of its own",
    )
    link.unlink()
    link.write_bytes(b"a file")
    assert checked(link).verdict is Verdict.CORRUPT


def test_a_folder_swapped_while_it_is_read_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes hashed are those of the folder first opened, whatever its name leads to later."""
    path = save(tmp_path, 500)
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / SHARD).write_bytes(b"evil")
    real = durable.open_regular

    def swap(member: str | Path, *, dir_fd: int | None = None) -> int:
        if member == SHARD and not path.is_symlink():
            path.rename(tmp_path / "moved")
            path.symlink_to(evil)
        return real(member, dir_fd=dir_fd)

    monkeypatch.setattr(durable, "open_regular", swap)
    assert checked(path).verdict is Verdict.VERIFIED
    assert path.is_symlink()


@pytest.mark.timeout(20)
def test_huge_and_deep_indexes_are_refused_at_once(tmp_path: Path) -> None:
    """A terabyte of index, a deep one, a long digest: corrupt, without reading or recursing for long."""
    path = save(tmp_path, 500)
    good = (path / INDEX).read_bytes()
    deep = b'{"a":' * 1_000_000
    (path / INDEX).write_bytes(deep)
    (path / INDEX_DIGEST).write_bytes(digest_line(deep))
    found = checked(path)
    assert (found.verdict, found.reason) == (
        Verdict.CORRUPT,
        "'index.json' is nested deeper than 64 levels",
    )
    os.truncate(path / INDEX, 1 << 40)
    found = checked(path)
    assert found.verdict is Verdict.CORRUPT
    assert found.reason == "'index.json' has 1099511627776 bytes or more; at most 16777216 are read"
    (path / INDEX).write_bytes(good)
    (path / INDEX_DIGEST).write_bytes(digest_line(good) * 1000)
    found = checked(path)
    assert found.verdict is Verdict.CORRUPT
    assert "at most 1024 are read" in found.reason
