"""Look at one generation and say what it is worth: a verdict with its reason, from reading it alone."""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from outlast_jobs import durable
from outlast_jobs.errors import (
    Cancelled,
    Corrupt,
    Foreign,
    Incomplete,
    IntegrityError,
    NotRegular,
    UnknownSchema,
)
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    INDEX_LIMIT,
    GenerationName,
    Index,
    check_digest,
    decode_index,
)
from outlast_jobs.parallel import each, readers

FileStats: TypeAlias = dict[str, list[int]]
"""File name -> [inode, ctime in ns, size]: by this a full verification is remembered."""

_BUFFER = 1 << 20


class Verdict(enum.StrEnum):
    """What was found of a generation."""

    VERIFIED = "verified"  # whole, as far as the finding's ``full`` says
    CORRUPT = "corrupt"  # not the bytes that were written, or not safe to look into
    INCOMPLETE = "incomplete"  # something that was promised is missing
    FOREIGN = "foreign"  # another run's, or in a format of another version: left alone
    UNREADABLE = "unreadable"  # could not be looked at, which says nothing about it


class Finding(Struct, frozen=True):
    """A verdict on one generation, with the reason, and what was learnt on the way."""

    path: Path
    name: GenerationName | None  # None where the folder isn't called as a generation is
    verdict: Verdict
    reason: str
    full: bool = False  # every byte is known to match: hashed now, or remembered and untouched since
    index: Index | None = None  # only where its own digest matched
    bytes: int = 0  # of all files that the index names
    stats: FileStats = {}  # what to remember if ``full``

    @property
    def step(self) -> int | None:
        """The step, from the name or else from the index."""
        known = self.name or self.index
        return known.step if known else None

    @property
    def attempt(self) -> int | None:
        """The attempt, from the name or else from the index."""
        known = self.name or self.index
        return known.attempt if known else None


def look(
    path: Path,
    run_id: str | None,
    *,
    full: bool,
    remembered: Mapping[str, Sequence[int]] | None = None,
    drop_cache: bool = False,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Finding:
    """Verify one generation. ``full`` hashes every byte, unless ``remembered`` shows it untouched since.

    ``run_id`` None takes any run's. ``drop_cache`` reads from the disk and not from memory. ``stop`` is
    asked between reads; when it says True, Cancelled is raised. ``progress`` is told the bytes of each read.
    Both may be called by several threads, since several files are read at once.
    """
    name = GenerationName.parse(path.name)
    looked = _Looked(path, name, run_id, _Reading(drop_cache, stop, progress))
    try:
        reason, is_full = looked.verify(full, remembered or {})
        verdict = Verdict.VERIFIED
    except Incomplete as error:
        verdict, reason, is_full = Verdict.INCOMPLETE, str(error), False
    except (Foreign, UnknownSchema) as error:
        verdict, reason, is_full = Verdict.FOREIGN, str(error), False
    except IntegrityError as error:
        verdict, reason, is_full = Verdict.CORRUPT, str(error), False
    except FileNotFoundError as error:
        verdict, reason, is_full = Verdict.INCOMPLETE, f"{error.filename!r} is missing", False
    except OSError as error:
        # Whatever else the system says is about looking, not about what lies there: calling it corrupt
        # would set aside a good generation because a server was away or descriptors had run out.
        verdict, reason, is_full = Verdict.UNREADABLE, f"can't be read: {said(error)}", False
    index = looked.index
    total = index.total_bytes if index else 0
    return Finding(path, name, verdict, reason, is_full, index, total, looked.stats)


def stats_of(path: Path, index: Index) -> FileStats:
    """What the journal remembers of a generation after a full verification."""
    fd = durable.open_folder(path)
    try:
        return {member: _stats(fd, member) for member in (INDEX, INDEX_DIGEST, *index.files)}
    finally:
        os.close(fd)


class _Reading(Struct, frozen=True):
    drop_cache: bool
    stop: Callable[[], bool] | None
    progress: Callable[[int], None] | None

    def sha256(self, fd: int, what: str, gave_up: Callable[[], bool]) -> tuple[str, int]:
        if self.drop_cache:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest, total = hashlib.sha256(), 0
        with memoryview(bytearray(_BUFFER)) as buffer:
            while True:
                if gave_up() or (self.stop is not None and self.stop()):
                    raise Cancelled(f"verification was stopped while reading {what!r}")
                got = durable.read_into(fd, buffer)
                if not got:
                    break
                digest.update(buffer[:got])
                total += got
                if self.progress is not None:
                    self.progress(got)
        if self.drop_cache:  # nobody reads it again soon; the training's own pages are worth more
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return digest.hexdigest(), total


class _Looked:
    """One look at one generation, by a descriptor of its folder, so that no link swapped in is followed."""

    def __init__(
        self, path: Path, name: GenerationName | None, run_id: str | None, reading: _Reading
    ) -> None:
        self.path = path
        self.name = name
        self.run_id = run_id
        self.reading = reading
        self.index: Index | None = None
        self.stats: FileStats = {}

    def verify(self, full: bool, remembered: Mapping[str, Sequence[int]]) -> tuple[str, bool]:
        try:
            fd = durable.open_folder(self.path)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP) and os.path.lexists(self.path):
                raise NotRegular(f"{self.path.name!r} is not a folder of its own") from None
            raise
        try:
            return self._verify(fd, full, remembered)
        finally:
            os.close(fd)

    def _verify(self, fd: int, full: bool, remembered: Mapping[str, Sequence[int]]) -> tuple[str, bool]:
        index = self._read_index(fd)
        surplus = self._check_members(fd, index)
        if self.stats == dict(remembered):
            return f"verified in full before and untouched since{surplus}", True
        if not full:
            return f"index and lengths match, contents not read{surplus}", False
        # a read-back beside a training takes one processor; nothing trains while a start waits for its hashes
        threads = 1 if self.reading.drop_cache else readers()
        each(lambda member, gave_up: self._check_content(fd, index, member, gave_up), [*index.files], threads)
        return f"all {len(index.files)} files match their sha256{surplus}", True

    def _read_index(self, fd: int) -> Index:
        content: dict[str, bytes] = {}
        for member, limit in ((INDEX_DIGEST, 1024), (INDEX, INDEX_LIMIT)):
            try:
                self.stats[member] = _stats(fd, member)
                content[member] = durable.read_file(member, limit, dir_fd=fd)
            except FileNotFoundError:
                raise Incomplete(f"{member!r} is missing") from None
        check_digest(content[INDEX], content[INDEX_DIGEST])
        index = decode_index(content[INDEX])
        self.index = index
        if self.run_id is not None and index.run_id != self.run_id:
            raise Foreign(f"it belongs to run {index.run_id[:100]!r}, this is run {self.run_id!r}")
        if self.name and (self.name.step, self.name.attempt) != (index.step, index.attempt):
            raise Corrupt(
                f"{INDEX!r} is of step {index.step} by attempt {index.attempt}, "
                f"but the folder is called {str(self.name)!r}"
            )
        return index

    def _check_members(self, fd: int, index: Index) -> str:
        present = set(os.listdir(fd))
        missing = [repr(member) for member in index.files if member not in present]
        if missing:
            raise Incomplete(f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        for member, entry in index.files.items():
            self.stats[member] = _stats(fd, member)
            size = self.stats[member][2]
            if size != entry.bytes:
                raise Corrupt(f"{member!r} has {size} bytes, the index says {entry.bytes}")
        surplus = sorted(present - index.files.keys() - {INDEX, INDEX_DIGEST})
        return (
            f"; also holds {_listed([repr(name) for name in surplus])}, not in the index" if surplus else ""
        )

    def _check_content(self, fd: int, index: Index, member: str, gave_up: Callable[[], bool]) -> None:
        entry = index.files[member]
        file = durable.open_regular(member, dir_fd=fd)
        try:
            found, size = self.reading.sha256(file, member, gave_up)
        finally:
            os.close(file)
        if size != entry.bytes:
            raise Corrupt(f"{member!r} ended after {size} bytes, the index says {entry.bytes}")
        if found != entry.sha256:
            raise Corrupt(f"{member!r} has sha256 {found}, the index says {entry.sha256}")


def _stats(fd: int, member: str) -> list[int]:
    found = os.stat(member, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        os.close(durable.open_regular(member, dir_fd=fd))  # says what it is instead
    return [found.st_ino, found.st_ctime_ns, found.st_size]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def said(error: OSError) -> str:
    """What the system said, with the code's name, for a sentence about what failed."""
    code = errno.errorcode.get(error.errno or 0, "")
    where = f" on {error.filename!r}" if error.filename is not None else ""
    return f"{error.strerror or error}{f' ({code})' if code else ''}{where}"
