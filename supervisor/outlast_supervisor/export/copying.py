"""Copy a generation byte for byte, hashed as it goes and held against its index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.errors import Corrupt, Incomplete, Unreadable
from outlast_jobs.generation import INDEX, INDEX_DIGEST, INDEX_LIMIT, Index, check_digest, decode_index
from outlast_jobs.look import said

_PIECE = 8 << 20


def copy_generation(source: Path, index: Index, target: Path) -> None:
    """Copy to ``target``, which must not exist; durable but for its name.

    An IntegrityError: the source is not what ``index`` says; Unreadable: it could not be read. Any other OSError is
    of the target. All files are opened first, so that what is pruned meanwhile is copied all the same.
    """
    with contextlib.ExitStack() as opened:
        with _reading(source):
            folder = durable.open_folder(source)
            opened.callback(os.close, folder)
            own = {
                name: durable.read_file(name, INDEX_LIMIT, dir_fd=folder) for name in (INDEX, INDEX_DIGEST)
            }
            check_digest(own[INDEX], own[INDEX_DIGEST])
            if decode_index(own[INDEX]) != index:
                raise Corrupt(f"{INDEX!r} changed while it was read")
            members = {}
            for name in index.files:
                members[name] = durable.open_regular(name, dir_fd=folder)
                opened.callback(os.close, members[name])
        target.mkdir()
        for name, fd in members.items():
            written = durable.write_file(target / name, _pieces(fd, name))
            entry = index.files[name]
            if (written.bytes, written.sha256) != (entry.bytes, entry.sha256):
                raise Corrupt(
                    f"{name!r} has {written.bytes} bytes and sha256 {written.sha256}, "
                    f"the index says {entry.bytes} and {entry.sha256}"
                )
            _forget_cached(target / name)
        for name, content in own.items():
            durable.write_file(target / name, content)
        durable.fsync_dir(target)


def _pieces(fd: int, name: str) -> Iterator[memoryview]:
    with memoryview(bytearray(_PIECE)) as buffer:
        while True:
            with _reading(Path(name)):
                got = durable.read_into(fd, buffer)
            if not got:
                return
            yield buffer[:got]


def _forget_cached(path: Path) -> None:
    """So that what loads it reads what the disk has, and not what memory has."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _reading(what: Path) -> Iterator[None]:
    """Tell a failure of the source from one of the target."""
    try:
        yield
    except FileNotFoundError as error:
        raise Incomplete(f"{os.path.basename(error.filename or what.name)!r} is missing") from None
    except OSError as error:
        raise Unreadable(error.errno, f"can't be read: {said(error)}", str(what)) from error
