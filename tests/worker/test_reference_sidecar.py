"""A checkpoint in one file: killed or failing at any moment of a save, the old one or the new one is valid."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs import sidecar
from outlast_jobs.errors import Corrupt, Incomplete, NotRegular
from outlast_jobs.look import Verdict
from outlast_jobs.sidecar import digest_file, look_file, publish, read_checked, scan_files

OLD, NEW, NEWER = b"old " * 999, b"new " * 1001, b"newer " * 1003
_FAIL = ("open", "write", "fsync", "replace", "fstat")
_CALLS = (*_FAIL, "close")


def held(path: Path) -> bytes:
    return bytes(read_checked(path))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs are counted and not waited for: a kill loses nothing that the kernel has."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class _Stop(BaseException):
    pass


def cut_at(
    number: int, act: Callable[[], object], call: Callable[[], object], calls: tuple[str, ...] = _CALLS
) -> bool:
    """Call ``act`` right before the numbered system call; whether there were that many."""
    seen, originals = 0, {name: getattr(os, name) for name in calls}

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number:
                act()
            return original(*args, **kwargs)

        return wrapped

    try:
        for name, original in originals.items():
            setattr(os, name, counted(original))
        call()
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    return seen >= number


def killed_at(number: int, call: Callable[[], object]) -> bool:
    """Whether a process that makes the call was killed right before the numbered system call."""
    child = os.fork()
    if child == 0:
        try:
            cut_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL), call)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_what_is_published_is_read_and_sha256sum_agrees(tmp_path: Path) -> None:
    """A published file is read back as it was written, and sha256sum -c finds it good."""
    path = tmp_path / "deep" / "ckpt.pt"
    written = publish(path, OLD)
    assert held(path) == OLD
    assert written.bytes == len(OLD)
    done = subprocess.run(
        ["sha256sum", "-c", "ckpt.pt.sha256"], cwd=path.parent, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "ckpt.pt: OK\n")
    assert sorted(os.listdir(path.parent)) == ["ckpt.pt", "ckpt.pt.sha256"]


@pytest.mark.usefixtures("no_waiting")
def test_killed_at_any_system_call_one_of_the_two_is_valid(tmp_path: Path) -> None:
    """Killed before any system call of a save, and in the next save again, a whole checkpoint stays valid."""
    first = 0
    while True:
        first += 1
        folder = tmp_path / str(first)
        path = folder / "ckpt.pt"
        publish(path, OLD)
        if not killed_at(first, lambda path=path: publish(path, NEW)):
            break
        assert held(path) in (OLD, NEW)
        before = held(path)
        for second in range(1, 60, 5):
            if not killed_at(second, lambda path=path: publish(path, NEWER)):
                break
            assert held(path) in (before, NEWER)
        publish(path, NEW)
        assert held(path) == NEW
        assert digest_file(path).read_text().count("ckpt.pt") == 1
    assert first > 15  # there were that many system calls to be killed at


@pytest.mark.usefixtures("no_waiting")
def test_the_first_save_killed_leaves_nothing_that_is_believed(tmp_path: Path) -> None:
    """Where there was no checkpoint, a cut save leaves none or the new one, and never a part of it."""
    number = 0
    while True:
        number += 1
        path = tmp_path / str(number) / "ckpt.pt"
        if not killed_at(number, lambda path=path: publish(path, NEW)):
            break
        try:
            assert held(path) == NEW
        except (FileNotFoundError, Incomplete):
            pass
        publish(path, NEWER)
        assert held(path) == NEWER


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.usefixtures("no_waiting")
def test_any_step_that_fails_costs_the_save_only(tmp_path: Path, code: int) -> None:
    """A full disk or an I/O error at any step raises, leaves a valid checkpoint, and no leftover by its side."""
    number = 0

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    while True:
        number += 1
        path = tmp_path / str(number) / "ckpt.pt"
        publish(path, OLD)
        try:
            if not cut_at(number, fail, lambda path=path: publish(path, NEW), _FAIL):
                break
        except OSError as error:
            failed = error.errno
            assert failed == code
        assert held(path) in (OLD, NEW)
        publish(path, NEWER)
        assert held(path) == NEWER
        assert sorted(os.listdir(path.parent)) == ["ckpt.pt", "ckpt.pt.sha256"], number


def test_between_the_two_digests_either_file_is_valid(tmp_path: Path) -> None:
    """While a save is under way the digest file names the new and the previous one, and each is accepted."""
    path = tmp_path / "ckpt.pt"
    publish(path, OLD)
    with pytest.raises(_Stop):
        cut_at_replace(1, path)
    assert digest_file(path).read_text().count("  ckpt.pt\n") == 2
    assert held(path) == OLD
    path.write_bytes(NEW)
    assert held(path) == NEW
    path.write_bytes(NEW[:-1] + b"!")
    with pytest.raises(Corrupt, match=r"has sha256 .* says .* or"):
        held(path)


def cut_at_replace(after: int, path: Path) -> None:
    """Publish NEW, and stop right after that many renames."""
    original, seen = os.replace, 0

    def replace(*args: Any, **kwargs: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > after:
            raise _Stop
        original(*args, **kwargs)

    os.replace = replace  # type: ignore[assignment]
    try:
        publish(path, NEW)
    finally:
        os.replace = original


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda p: p.write_bytes(OLD[:-1]), Corrupt, "has 3995 bytes, 'ckpt.pt.sha256' says 3996"),
        (lambda p: p.write_bytes(b"x" + OLD[1:]), Corrupt, "has sha256"),
        (lambda p: p.write_bytes(b""), Corrupt, "has 0 bytes"),
        (lambda p: p.unlink(), Incomplete, "'ckpt.pt' is missing, though its digest is there"),
        (lambda p: digest_file(p).unlink(), Incomplete, 'write one with "sha256sum ckpt.pt'),
        (lambda p: digest_file(p).write_text(""), Corrupt, "not what sha256sum writes"),
        (
            lambda p: digest_file(p).write_text(f"{'0' * 64}  other.pt\n"),
            Corrupt,
            "not what sha256sum writes",
        ),
        (lambda p: digest_file(p).write_bytes(b"\xff" * 9999), Corrupt, "at most 4096"),
        (lambda p: (p.unlink(), p.mkdir()), NotRegular, "a folder"),
        (lambda p: (p.unlink(), os.mkfifo(p)), NotRegular, "a named pipe"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Any, error: type[Exception], words: str) -> None:
    """Whatever is wrong with a checkpoint or its digest is a named error, and the same to a look."""
    path = tmp_path / "ckpt.pt"
    publish(path, OLD)
    damage(path)
    with pytest.raises(error, match=None) as caught:
        read_checked(path)
    assert words in str(caught.value)
    finding = look_file(path)
    assert finding.verdict is (Verdict.INCOMPLETE if error is Incomplete else Verdict.CORRUPT)
    assert words in finding.reason


def test_a_missing_checkpoint_is_no_damage(tmp_path: Path) -> None:
    """With neither file nor digest it is FileNotFoundError, on which a script begins anew."""
    with pytest.raises(FileNotFoundError):
        read_checked(tmp_path / "ckpt.pt")


def test_a_digest_by_hand_is_accepted(tmp_path: Path) -> None:
    """What sha256sum itself wrote, also in binary mode and with a path before the name, is a digest."""
    path = tmp_path / "ckpt.pt"
    path.write_bytes(OLD)
    assert bytes(read_checked(path, require_digest=False)) == OLD
    for words in (["sha256sum", "ckpt.pt"], ["sha256sum", "-b", "ckpt.pt"], ["sha256sum", str(path)]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
        digest_file(path).write_bytes(done.stdout)
        assert held(path) == OLD


def test_a_reader_that_meets_a_save_reads_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole save between a reader's two looks is not taken for damage."""
    path = tmp_path / "ckpt.pt"
    publish(path, OLD)
    original, pending = sidecar._digests, [NEW, NEWER]

    def digests(*args: Any) -> Any:
        if pending:
            monkeypatch.setattr(sidecar, "_digests", original)
            publish(path, pending.pop(0))
            monkeypatch.setattr(sidecar, "_digests", digests)
        return original(*args)

    monkeypatch.setattr(sidecar, "_digests", digests)
    assert held(path) == NEWER


def test_a_link_is_followed_to_the_file_and_its_digest(tmp_path: Path) -> None:
    """A link like latest.pt reads the checkpoint that it points to, by that one's own digest."""
    publish(tmp_path / "step-7.pt", OLD)
    (tmp_path / "latest.pt").symlink_to("step-7.pt")
    assert held(tmp_path / "latest.pt") == OLD


def test_scan_finds_what_is_there_and_what_is_only_told_of(tmp_path: Path) -> None:
    """Newest step first; a digest without its file is listed, tensors of others and leftovers are not."""
    for name in ("step-000000009.a0001.pt", "step-000000010.a0001.pt", "step-000000001.a0002.pt", "best.pt"):
        publish(tmp_path / name, OLD)
    (tmp_path / "best.pt").unlink()
    (tmp_path / "weights.pt").write_bytes(OLD)
    (tmp_path / ".tmp-x.pt").write_bytes(OLD)
    assert [path.name for path in scan_files(tmp_path)] == [
        "step-000000001.a0002.pt",
        "step-000000010.a0001.pt",
        "step-000000009.a0001.pt",
        "best.pt",
    ]
    assert look_file(tmp_path / "best.pt").verdict is Verdict.INCOMPLETE
    assert look_file(tmp_path / "step-000000009.a0001.pt", full=False).verdict is Verdict.VERIFIED
