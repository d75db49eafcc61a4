"""The durable write and the guarded reads: whole or not there, never through a link, never waiting."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs import durable
from outlast_jobs.errors import Malformed, NotRegular


def leftovers(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_is_written_is_counted_and_hashed(tmp_path: Path) -> None:
    """The record of a write is that of the bytes on disk, however they came in pieces."""
    pieces: list[bytes | bytearray | memoryview] = [
        b"abc",
        bytearray(b""),
        memoryview(b"\0" * (9 << 20)),
        b"end",
    ]
    seen: list[int] = []
    written = durable.write_file(tmp_path / "f", iter(pieces), progress=seen.append)
    content = (tmp_path / "f").read_bytes()
    assert content == b"".join(pieces)
    assert written == durable.Written(len(content), hashlib.sha256(content).hexdigest())
    assert seen == [3, 8 << 20, 1 << 20, 3]


def test_a_shaped_buffer_is_written_as_its_bytes(tmp_path: Path) -> None:
    """A buffer of another item size or shape, empty ones too, is taken by its bytes."""
    grid = memoryview(bytes(range(24))).cast("B", [4, 6])
    words = memoryview(bytes(16)).cast("q")
    durable.write_file(tmp_path / "f", [grid, words[:0], words])
    assert (tmp_path / "f").read_bytes() == bytes(range(24)) + bytes(16)


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes less than asked is asked again."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    durable.write_file(tmp_path / "f", bytes(range(100)))
    assert (tmp_path / "f").read_bytes() == bytes(range(100))


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    """An exclusive write of a taken name fails and leaves what was there."""
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        durable.write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


def test_no_link_is_written_through(tmp_path: Path) -> None:
    """A symbolic link under the name stops the write; its target isn't touched."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "f").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        durable.write_file(tmp_path / "f", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """After a full disk or an I/O error the part is gone, the error is the system's, no descriptor leaks."""
    before = len(os.listdir("/proc/self/fd"))
    real = os.write
    calls: list[int] = []

    def fail(fd: int, data: memoryview | None = None) -> int:
        calls.append(fd)
        if call == "write" and data is not None and len(calls) == 1:
            return real(fd, data[:10])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError) as caught:
        durable.write_file(tmp_path / "f", bytes(1000))
    monkeypatch.undo()
    assert caught.value.errno == code
    assert leftovers(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("inside", [True, False])
def test_a_failed_replacement_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Where the rename fails the old content stays, and the new one does not lie beside it."""
    path = tmp_path / "folder" / "f"
    path.parent.mkdir()
    path.write_bytes(b"old")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        durable.replace_file(path, b"new", root=tmp_path if inside else None)
    assert os.listdir(path.parent) == ["f"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("inside", [True, False])
def test_a_replacement_is_durable_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """The content is synced before it gets the name, and the folder with the name after that."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def spy_replace(*args: Any, **kwargs: Any) -> None:
        order.append("name")
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    durable.replace_file(tmp_path / "f", b"new", root=tmp_path if inside else None)
    assert order == ["file", "name", "folder"]


def test_a_failing_close_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose close fails did not arrive: no part of it stays, under its name or a temporary one."""
    real = os.close

    def failing(fd: int) -> None:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        real(fd)
        if regular:
            raise OSError(errno.EDQUOT, "disk quota exceeded")

    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(OSError, match="quota"):
        durable.write_file(tmp_path / "file", b"data")
    with pytest.raises(OSError, match="quota"):
        durable.replace_file(tmp_path / "other", b"data")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_raises_leaves_nothing(tmp_path: Path) -> None:
    """When the chunks or the progress fail, the part is gone and the error is theirs."""

    def chunks() -> Iterator[bytes]:
        yield b"abc"
        raise KeyboardInterrupt

    def refuse(_: int) -> None:
        raise KeyError("told")

    with pytest.raises(KeyboardInterrupt):
        durable.write_file(tmp_path / "f", chunks())
    with pytest.raises(KeyError):
        durable.write_file(tmp_path / "f", b"abc", progress=refuse)
    assert leftovers(tmp_path) == []


def test_a_length_that_does_not_match_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that claims more than the file then has is found out."""
    monkeypatch.setattr(os, "write", lambda fd, data: len(data))
    with pytest.raises(OSError, match="wrote 5 bytes and the file has 0"):
        durable.write_file(tmp_path / "f", b"12345")
    assert leftovers(tmp_path) == []


def test_files_honour_the_umask(tmp_path: Path) -> None:
    """The mode is what the umask leaves of 0666."""
    old = os.umask(0o027)
    try:
        durable.write_file(tmp_path / "f", b"x")
        durable.replace_file(tmp_path / "g", b"x")
    finally:
        os.umask(old)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "fg"] == [0o640, 0o640]


def test_replace_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replace that fails at any call leaves the old content and no temporary file."""
    target = tmp_path / "status"
    durable.replace_file(target, b"old")
    for call in ("write", "fsync", "replace"):

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match="no space"):
            durable.replace_file(target, b"new")
        monkeypatch.undo()
        assert target.read_bytes() == b"old"
        assert leftovers(tmp_path) == ["status"]
    durable.replace_file(target, b"new", durable=False)
    assert target.read_bytes() == b"new"


def test_replace_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    """The link under the name is replaced; what it pointed to stays as it was."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "f").symlink_to("target")
    durable.replace_file(tmp_path / "f", b"new")
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("flags_known", [True, False])
@pytest.mark.parametrize("kind", ["file", "empty folder", "full folder", "dangling link"])
def test_publishing_never_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, flags_known: bool
) -> None:
    """A rename to a taken name fails, whatever stands there, also where the kernel knows no flags."""
    if not flags_known:
        monkeypatch.setattr(durable, "_RENAME_NOREPLACE", 1 << 20)  # EINVAL, as NFS says
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "new").touch()
    if kind == "file":
        target.touch()
    elif kind == "dangling link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()
        if kind == "full folder":
            (target / "old").touch()
    with pytest.raises(FileExistsError):
        durable.publish_dir(source, target)
    assert (source / "new").exists()
    assert not (target / "new").exists()
    durable.publish_dir(source, tmp_path / "free")
    assert (tmp_path / "free" / "new").exists()
    with pytest.raises(FileNotFoundError):
        durable.publish_dir(source, tmp_path / "free2")


def test_folders_without_fsync_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL from the fsync of a folder is passed over; any other error is not."""

    def fail(code: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fsync)

    fail(errno.EINVAL)
    durable.fsync_dir(tmp_path)
    fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        durable.fsync_dir(tmp_path)


def test_deleting_follows_no_link(tmp_path: Path) -> None:
    """A tree with links to files, folders and nowhere goes; what they point to stays."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").touch()
    tree = tmp_path / "run" / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    (tree / "to-folder").symlink_to(outside)
    (tree / "a" / "to-file").symlink_to(outside / "deep" / "file")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    durable.remove_tree(tree, tmp_path / "run")
    assert leftovers(tmp_path / "run") == []
    (tmp_path / "run" / "link").symlink_to(outside)
    durable.remove_tree(tmp_path / "run" / "link", tmp_path / "run")
    assert leftovers(tmp_path / "run") == []
    assert (outside / "deep" / "file").exists()


def test_what_is_being_deleted_has_no_name_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete that is cut short leaves only trash: the name is gone, durably, before the first file is."""
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "f").touch()
    order: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def spy_fsync(fd: int) -> None:
        order.append("fsync")
        fsync(fd)

    def spy_unlink(name: str, **where: int) -> None:
        order.append(f"unlink {Path(name).name}")
        unlink(name, **where)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "unlink", spy_unlink)
    trash = durable.discard(tmp_path / "step", tmp_path)
    assert leftovers(tmp_path) == [trash.name]
    assert trash.name.startswith(durable.TRASH)
    durable.delete_tree(trash)
    assert order[0] == "fsync"
    assert order[-1] == "unlink f"
    assert leftovers(tmp_path) == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["symbolic link", "folder", "named pipe", "socket", "device"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, folders, pipes, sockets and devices are refused by name and kind, without waiting."""
    path: Path = tmp_path / "f"
    if kind == "symbolic link":
        (tmp_path / "real").write_bytes(b"x")
        path.symlink_to("real")
    elif kind == "folder":
        path.mkdir()
    elif kind == "named pipe":
        os.mkfifo(path)
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        socket.socket(socket.AF_UNIX).bind("f")
    else:
        path = Path("/dev/zero")
    with pytest.raises(NotRegular, match=f"is a {kind}, not a regular file"):
        durable.read_file(path, 100)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_swap_between_look_and_open_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where the file becomes a link or a pipe after it was looked at, it is refused all the same."""
    path = tmp_path / "f"
    path.write_bytes(b"x")
    real = os.stat

    def swap(target: str | Path, **options: object) -> os.stat_result:
        result = real(target, **options)  # type: ignore[arg-type]
        path.unlink()
        if kind == "link":
            path.symlink_to("/etc/passwd")
        else:
            os.mkfifo(path)
        return result

    monkeypatch.setattr(os, "stat", swap)
    with pytest.raises(NotRegular):
        durable.read_file(path, 100)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte is refused by its size alone; one at the limit is read."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)

    def never(*_: object) -> int:
        raise AssertionError("it was read")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "read_into", never)
        with pytest.raises(Malformed, match=f"'{tmp_path}/huge' has 1099511627776 bytes"):
            durable.read_file(tmp_path / "huge", 1000)
    (tmp_path / "fits").write_bytes(b"x" * 1000)
    assert durable.read_file(tmp_path / "fits", 1000) == b"x" * 1000


def test_a_file_without_a_size_is_read_to_its_end() -> None:
    """Files of /proc say 0 bytes and hold more; the limit holds for what comes."""
    assert durable.read_file("/proc/self/stat", 10_000).endswith(b"\n")
    with pytest.raises(Malformed, match="at most 20 are read"):
        durable.read_file("/proc/self/stat", 20)


def test_a_linked_folder_is_not_opened(tmp_path: Path) -> None:
    """A folder swapped for a symbolic link is an error of its own."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError) as caught:
        durable.open_folder(tmp_path / "link")
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
