"""Read a sealed generation: every file once, hashed while it is read, loaded only if all match the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast_jobs import durable
from outlast_jobs.contract import Schema
from outlast_jobs.errors import Corrupt, Foreign, Incomplete, IntegrityError, UnknownSchema, Unreadable
from outlast_jobs.generation import INDEX, INDEX_DIGEST, META, FileEntry, GenerationName, Index, safe_member
from outlast_jobs.look import Finding, Verdict, look
from outlast_jobs.migrations import Migrations, to_current
from outlast_jobs.parallel import each, readers
from outlast_worker.digest import state_sha256
from outlast_worker.inherited import Inherited
from outlast_worker.ptfile import UnsafeTorch, not_by_the_file, require_safe_loader, telling_line
from outlast_worker.ptread import read_verified
from outlast_worker.shards import put_back
from outlast_worker.typewalk import original
from outlast_worker.verified import Verified


class Loaded(Struct, frozen=True):
    """A generation that was verified while it was read. ``state`` is the tree that was saved."""

    index: Index
    state: dict[str, Any]
    name: GenerationName


def read_generation(path: Path, *, run_id: str | None = None, inherited: Inherited | None = None) -> Loaded:
    """Read, verify and load. Any mismatch is an IntegrityError; ``bad_report`` says of what.

    ``run_id`` None takes any run's. Unreadable says only that it could not be looked at. What of it lies in
    ``inherited`` is read there, and on disk where it is not what the index on disk says.
    """
    require_safe_loader()
    path = Path(path)
    finding = look(path, run_id, full=False)
    if finding.verdict is not Verdict.VERIFIED or finding.index is None:
        raise _as_error(finding)
    index = finding.index
    state = read_files(path, index.files, inherited)
    if state["counters"]["step"] != index.step:
        raise _at(
            Corrupt(f"{META!r} is of step {state['counters']['step']}, the index says {index.step}"),
            path.name,
            META,
        )
    name = finding.name or GenerationName(index.step, index.attempt)
    return Loaded(index, state, name)


def digest_generation(path: Path) -> str:
    """The state_sha256 of a generation, from what is loaded from it."""
    return state_sha256(read_generation(path).state)


def bad_report(error: IntegrityError) -> dict[str, str]:
    """Which generation, which file of it, and why: what a supervisor is told of a mismatch."""
    return {
        "generation": str(getattr(error, "generation", "")),
        "file": str(getattr(error, "file", "")),
        "reason": str(error),
    }


def read_files(
    folder: Path, files: Mapping[str, FileEntry], inherited: Inherited | None = None
) -> dict[str, Any]:
    """The state in a folder whose files must be those; each is read once, by a descriptor of the folder."""
    try:
        fd = durable.open_folder(folder)
    except OSError as error:
        raise Unreadable(error.errno, f"can't be read: {error.strerror}", str(folder)) from error
    try:
        return _Reader(folder.name, fd, files, inherited).state()
    finally:
        os.close(fd)


class _Reader:
    """Reads all files of a folder, several at once, and looks into none before every one has its digest."""

    def __init__(
        self, generation: str, fd: int, files: Mapping[str, FileEntry], inherited: Inherited | None
    ) -> None:
        self._inherited = inherited
        self._generation = generation
        self._fd = fd
        self._files = files
        self._read: dict[str, Verified] = {}

    def state(self) -> dict[str, Any]:
        # nothing of a surplus member is used, but a generation is valid as a whole or not at all
        # of several bad ones it is told first
        members = sorted(self._files, key=lambda member: member != META)
        self._read = dict(zip(members, each(self._member, members, readers()), strict=True))
        try:
            meta = to_current(self._load(META), Schema.META, _MIGRATIONS, META)
        except UnknownSchema as error:
            self._bad(error, META)
            raise
        names = meta.pop("shards", None)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._bad(Corrupt(f"{META!r} does not say which shards there are"), META)
        shards = [self._load(name) for name in names]
        try:
            state = original(put_back(meta, shards))
        except (ValueError, RecursionError) as error:
            raise self._bad(Corrupt(f"{META!r} does not fit the shards: {error}"), META) from error
        self._check_shape(state)
        return dict(state)

    def _load(self, member: str) -> dict[str, Any]:
        try:
            verified = self._read.pop(safe_member(member))  # no second use: what it makes owns its memory
        except KeyError:
            why = f"{member!r} is not in the index, or named twice"
            raise self._bad(Incomplete(why), member) from None
        except IntegrityError as error:
            self._bad(error, member)
            raise
        try:
            content = verified.content()
        except (UnsafeTorch, MemoryError):
            raise
        except Exception as error:  # hostile content makes the loader raise all sorts of things
            if other := not_by_the_file(error, f"{member!r} of {self._generation!r}"):
                raise other from error
            why = f"the safe loader refuses {member!r}, though its sha256 is right: {telling_line(error)}"
            raise self._bad(Corrupt(why), member) from error
        if not isinstance(content, dict):
            raise self._bad(Corrupt(f"{member!r} holds no dict but {type(content).__name__}"), member)
        return content

    def _member(self, member: str, gave_up: Callable[[], bool]) -> Verified:
        found = self._in_memory(member, gave_up)
        return self._on_disk(member, gave_up) if found is None else found

    def _in_memory(self, member: str, gave_up: Callable[[], bool]) -> Verified | None:
        """From what the attempt before has left, with the digest of the index on disk; else None."""
        entry, inherited = self._files[member], self._inherited
        file = inherited.find(self._generation, member, entry.bytes) if inherited is not None else None
        if inherited is None or file is None:
            return None
        try:
            fd = inherited.open()
            try:
                found = read_verified(fd, member, entry, gave_up, file.start)
            finally:
                os.close(fd)
        except (Corrupt, OSError) as error:
            inherited.refused = str(error)
            return None
        inherited.used += 1
        return found

    def _on_disk(self, member: str, gave_up: Callable[[], bool]) -> Verified:
        try:
            file = durable.open_regular(safe_member(member), dir_fd=self._fd)
            try:
                return read_verified(file, member, self._files[member], gave_up)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise self._bad(Incomplete(f"{member!r} is missing"), member) from None
        except IntegrityError as error:
            self._bad(error, member)
            raise
        except OSError as error:
            raise Unreadable(
                error.errno, f"can't read {member!r}: {error.strerror}", self._generation
            ) from error

    def _check_shape(self, state: Any) -> None:
        for key, kind in _SHAPE.items():
            if not isinstance(state.get(key), kind):
                raise self._bad(Corrupt(f"{META!r} has no {key!r}"), META)
        for key in ("step", "epoch", "batch_in_epoch"):
            if type(state["counters"].get(key)) is not int:
                raise self._bad(Corrupt(f"{META!r} has no counter {key!r}"), META)

    def _bad(self, error: IntegrityError, member: str) -> IntegrityError:
        return _at(error, self._generation, member)


_SHAPE = {"parts": dict, "kinds": dict, "counters": dict, "losses": list, "rng": dict, "extra": dict}
_MIGRATIONS: Migrations = {}


def _at(error: IntegrityError, generation: str, file: str) -> IntegrityError:
    error.__dict__.update(generation=generation, file=file)
    return error


def _as_error(finding: Finding) -> Exception:
    if finding.verdict is Verdict.UNREADABLE:
        return Unreadable(None, finding.reason, str(finding.path))
    kinds = {Verdict.INCOMPLETE: Incomplete, Verdict.FOREIGN: Foreign}
    error = kinds.get(finding.verdict, Corrupt)(f"{finding.path.name!r}: {finding.reason}")
    members = (INDEX_DIGEST, *(finding.index.files if finding.index else (META,)))
    named = next((member for member in members if repr(member) in finding.reason), INDEX)
    return _at(error, finding.path.name, named)
