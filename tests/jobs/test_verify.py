"""Verification: no unreadable generation is condemned, and the newest good one is what a start gets."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.jobs.generations import ALL, FILES, RUN, SHARD, checked, flip, rewrite_index, save

from outlast_jobs import durable
from outlast_jobs.claim import claim
from outlast_jobs.errors import Cancelled, Unreadable
from outlast_jobs.generation import INDEX, INDEX_DIGEST
from outlast_jobs.verify import (
    Verdict,
    newest_usable,
    quarantine,
    scan,
    set_aside,
)

PASSING = [
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.EACCES,
    errno.EPERM,
    errno.ENOMEM,
    errno.ETIMEDOUT,
    errno.EREMOTEIO,
    errno.ENOTCONN,
]


@pytest.mark.parametrize("code", PASSING)
@pytest.mark.parametrize("call", ["open", "stat", "listdir", "read"])
def test_what_cannot_be_looked_at_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Whichever call fails, the first, or the last, with whatever the system says, nothing is condemned."""
    path = save(tmp_path, 500)
    owner, name = (durable, "read_into") if call == "read" else (os, call)
    real: Callable[..., object] = getattr(owner, name)
    seen = 0
    failing_at = 0

    def fail(*args: object, **options: object) -> object:
        nonlocal seen
        seen += 1
        if seen == failing_at:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    verdicts: list[Verdict] = []
    while failing_at <= seen:  # each call of the kind fails once; then none does
        seen, failing_at = 0, failing_at + 1
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            found = checked(path)
        verdicts.append(found.verdict)
        if found.verdict is not Verdict.VERIFIED:
            assert errno.errorcode[code] in found.reason
            assert not found.full
    assert verdicts[:-1] == [Verdict.UNREADABLE] * (len(verdicts) - 1)
    assert len(verdicts) > 1
    assert verdicts[-1] is Verdict.VERIFIED


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_unreadable(tmp_path: Path) -> None:
    """A file that this user may not read is unreadable, with the system's word."""
    path = save(tmp_path, 500)
    (path / SHARD).chmod(0)
    found = checked(path)
    assert found.verdict is Verdict.UNREADABLE
    assert "EACCES" in found.reason


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that fails raises; it never looks like a run without generations."""
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "not mounted")

    def fail(_: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(Unreadable, match=r"can't list the generations: .*EIO"):
        newest_usable(tmp_path, RUN, {})


def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    real = durable.open_regular

    def guarded(member: str | Path, *, dir_fd: int | None = None) -> int:
        if str(member) in FILES:
            raise AssertionError(f"{member} was opened")
        return real(member, dir_fd=dir_fd)

    monkeypatch.setattr(durable, "open_regular", guarded)


@pytest.mark.parametrize("full", [True, False])
def test_a_remembered_verification_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """What was verified in full and is untouched since is full again, without reading it."""
    path = save(tmp_path, 500)
    stats = json.loads(json.dumps(checked(path).stats))
    never_read(monkeypatch)
    found = checked(path, full=full, remembered=stats)
    assert (found.verdict, found.full) == (Verdict.VERIFIED, True)
    assert found.reason == "verified in full before and untouched since"


@pytest.mark.parametrize("member", ALL)
def test_a_touched_file_is_read_again(tmp_path: Path, member: str) -> None:
    """A rewrite of any file, with the same length and old times, ends what was remembered."""
    path = save(tmp_path, 500)
    stats = checked(path).stats
    times = (path / member).stat()
    content = (path / member).read_bytes()
    (path / member).write_bytes(content)
    os.utime(path / member, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert checked(path, remembered=stats).reason == "all 2 files match their sha256"
    (path / member).write_bytes(flip(content, 3))
    assert checked(path, remembered=stats).verdict is Verdict.CORRUPT


@pytest.mark.parametrize("remembered", [{}, {"meta.pt": [1, 2, 3]}, {"x": "y"}, {INDEX: []}])
def test_a_wrong_memory_only_costs_a_read(tmp_path: Path, remembered: dict[str, list[int]]) -> None:
    """Whatever the journal says, only an exact memory saves the reading."""
    assert checked(save(tmp_path, 500), remembered=remembered).reason == "all 2 files match their sha256"


def test_a_read_can_be_stopped(tmp_path: Path) -> None:
    """Stop is asked between reads and ends the look with no verdict; no descriptor is left."""
    path = save(tmp_path, 500)
    before = len(os.listdir("/proc/self/fd"))
    asked: list[int] = []
    read: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(Cancelled, match="stopped while reading"):
        checked(path, stop=stop, progress=read.append, drop_cache=True)
    assert read == [1000]
    asked.clear()
    with pytest.raises(Cancelled, match="stopped while reading"):
        checked(path, stop=stop, progress=read.append)  # by several threads
    assert len(read) <= 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_reading_past_the_cache_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With drop_cache each file's pages are given up before it is read."""
    path = save(tmp_path, 500)
    dropped: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, length, advice: dropped.append(advice))
    assert checked(path, drop_cache=True).full
    assert dropped == [os.POSIX_FADV_DONTNEED] * 2 * len(FILES)


def test_the_newest_good_one_is_chosen(tmp_path: Path) -> None:
    """From newest to oldest by attempt, then step: bad ones are passed with reasons, the rest not read."""
    first, second = save(tmp_path, 900, 1), save(tmp_path, 100, 2)
    third, fourth = save(tmp_path, 200, 2), save(tmp_path, 50, 3)
    os.utime(first)
    (fourth / SHARD).write_bytes(b"cut")
    (third / "meta.pt").unlink()
    choice = newest_usable(tmp_path, RUN, {})
    assert choice.chosen is not None
    assert choice.chosen.path == second
    assert [found.path for found in choice.tried] == [fourth, third, second]
    assert [found.verdict for found in choice.tried] == ["corrupt", "incomplete", "verified"]
    assert not choice.from_zero


def test_skipped_and_sick_ones_are_not_chosen(tmp_path: Path) -> None:
    """A name in skip isn't looked at; with healthy_only a sick one is seen and passed over."""
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    third, fourth = save(tmp_path, 3, healthy=False), save(tmp_path, 4)
    choice = newest_usable(tmp_path, RUN, {}, skip={fourth.name}, healthy_only=True)
    assert choice.chosen is not None
    assert (choice.chosen.path, choice.skipped) == (second, (fourth,))
    assert [found.path for found in choice.tried] == [third, second]
    assert first.exists()


def test_no_choice_is_not_a_fresh_start(tmp_path: Path) -> None:
    """From zero is only where nothing was ever sealed: not after all were condemned, skipped or set aside."""
    claim(tmp_path, 1)
    (tmp_path / ".trash-x").mkdir()
    (tmp_path / "notes").mkdir()
    assert newest_usable(tmp_path, RUN, {}).from_zero
    path = save(tmp_path, 5)
    assert not newest_usable(tmp_path, RUN, {}, skip={path.name}).from_zero
    (path / INDEX).unlink()
    choice = newest_usable(tmp_path, RUN, {})
    assert (choice.chosen, choice.from_zero) == (None, False)
    aside = quarantine(path, choice.tried[0].reason)
    choice = newest_usable(tmp_path, RUN, {})
    assert (choice.chosen, choice.tried, choice.set_aside, choice.from_zero) == (None, (), (aside,), False)


def test_remembered_stats_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice uses what is remembered of each generation."""
    path = save(tmp_path, 5)
    stats = checked(path).stats
    never_read(monkeypatch)
    choice = newest_usable(tmp_path, RUN, {path.name: stats})
    assert choice.chosen is not None
    assert choice.chosen.full


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    """Each bad one of a name gets the first free number, whatever stands there; all are kept."""
    name = "step-000000005.a0001"
    (tmp_path / f"{name}.corrupt-2").touch()
    (tmp_path / f"{name}.corrupt-3").symlink_to("nowhere")
    (tmp_path / f"{name}.corrupt-4").mkdir()
    paths = []
    for number in range(3):
        path = save(tmp_path, 5)
        (path / SHARD).write_bytes(bytes([number]))
        paths.append(quarantine(path, "why"))
    assert [path.name[-9:] for path in paths] == ["corrupt-1", "corrupt-5", "corrupt-6"]
    assert [(path / SHARD).read_bytes() for path in paths] == [b"\0", b"\1", b"\2"]
    assert scan(tmp_path) == []
    assert len(set_aside(tmp_path)) == 6
    with pytest.raises(FileNotFoundError):
        quarantine(tmp_path / name, "why")
    with pytest.raises(ValueError, match="without a reason"):
        quarantine(paths[0], "")


OPTIMISED = """
import sys
from pathlib import Path
from outlast_jobs.verify import look
for name in sys.argv[1:]:
    print(look(Path(name), "{run}", full=True).verdict)
"""


def test_optimised_python_checks_the_same(tmp_path: Path) -> None:
    """With ``python -O`` every verdict is what it is without."""
    good, flipped, unsafe, cut = (save(tmp_path, step) for step in (1, 2, 3, 4))
    (flipped / SHARD).write_bytes(flip(FILES[SHARD], 9))
    rewrite_index(unsafe, files={"../x": {"bytes": 1, "sha256": "a" * 64}})
    (cut / INDEX_DIGEST).write_bytes(b"")
    command = [sys.executable, "-O", "-c", OPTIMISED.format(run=RUN), *map(str, (good, flipped, unsafe, cut))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["verified", "corrupt", "corrupt", "corrupt"]


def test_no_check_is_an_assert() -> None:
    """No module of the format asserts: what is checked is checked under ``-O`` too."""
    for module in ("durable", "generation", "sealer", "claim", "look", "verify", "retention", "safejson"):
        source = Path(durable.__file__).with_name(f"{module}.py").read_text()
        assert not re.search(r"^\s*assert\b", source, re.MULTILINE), module


def test_the_index_struct_is_frozen(tmp_path: Path) -> None:
    """A finding's index can't be changed under the reader."""
    index = checked(save(tmp_path, 1)).index
    assert index is not None
    with pytest.raises(AttributeError):
        index.step = 2  # type: ignore[misc]
    assert msgspec.structs.asdict(index)["step"] == 1
