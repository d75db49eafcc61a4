"""The run directory: where everything of a run lies, and the few files that belong to the run as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast_jobs import durable, safejson
from outlast_jobs.beneath import require_folder
from outlast_jobs.contract import Schema
from outlast_jobs.errors import Incomplete, IntegrityError, Malformed, UnknownSchema
from outlast_jobs.identity import hostname
from outlast_jobs.leftovers import is_stale

_SMALL = 64 * 1024
_STATUS_LIMIT = 1024 * 1024
_INDEX_LIMIT = 16 * 1024 * 1024
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_OF_AN_ATTEMPT = re.compile(
    r"step-\d+\.a(\d{1,12})(?:\.final)?(?:\.corrupt-\d+)?|\.writing-(\d{1,12})|attempt-(\d{1,12})\.(?:log|jsonl)"
)


class Run(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.RUN):
    """What `run.json` says: which run this is, and when and where it began."""

    run_id: str
    began: float
    host: str


class Created(Struct, frozen=True):
    """The run of a directory, and what had to be done to know it (None where nothing was)."""

    run: Run
    note: str | None
    new: bool = False  # the id was made just now, so nothing that lives or lies anywhere can bear it


class RunDirectory(Struct, frozen=True):
    """The places in one run directory. Making this object touches nothing."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def job_yaml(self) -> Path:
        return self.path / "job.yaml"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def status_json(self) -> Path:
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def alive(self) -> Path:
        return self.path / "alive"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def proof(self) -> Path:
        return self.path / "proof"

    def attempt_log(self, attempt: int) -> Path:
        return self.logs / f"attempt-{attempt:04d}.log"

    def attempt_metrics(self, attempt: int) -> Path:
        return self.metrics / f"attempt-{attempt:04d}.jsonl"

    def create(self) -> Created:
        """Make what is missing and say which run this is. Only for the holder of the lock.

        A `run.json` that is damaged is made anew from the run's own generations, which name the run; where
        there is nothing to take the id from, a run that has checkpoints is refused, not given another id.
        """
        for folder in (self.journal, self.requests, self.checkpoints, self.logs, self.metrics):
            folder.mkdir(parents=True, exist_ok=True)
            require_folder(folder)
        try:
            return Created(self.read_run(), None)
        except UnknownSchema:
            raise
        except IntegrityError as damage:
            return self._made_anew(damage)

    def read_run(self) -> Run:
        """Which run this is; Incomplete where there is no `run.json`, IntegrityError for a bad one."""
        what = f'"{self.run_json}"'
        try:
            data = durable.read_file(self.run_json, _SMALL)
        except FileNotFoundError:
            raise Incomplete(f"{what} is missing: this is no run directory yet") from None
        tree = safejson.parse_object(data, what=what, limit=_SMALL)
        if tree.get("schema") != Schema.RUN:
            raise UnknownSchema(
                f"{what} has schema {tree.get('schema')!r}; this version reads {Schema.RUN!r}"
            )
        try:
            run = msgspec.convert(tree, Run)
        except msgspec.ValidationError as error:
            raise Malformed(f"{what} does not say which run this is: {error}") from None
        if not _RUN_ID.fullmatch(run.run_id):
            raise Malformed(f"{what} has the run id {run.run_id!r}, expected 32 hexadecimal digits")
        return run

    def sweep(self) -> list[str]:
        """Remove what unfinished writes and deletions left; only for the holder of the lock.

        Returns what could not be removed, with the reason: leftovers cost space and nothing else.
        """
        problems: list[str] = []
        if self.path.is_symlink():  # that it is one is its owner's choice; none below it may be
            return RunDirectory(Path(os.path.realpath(self.path))).sweep()
        for folder in (self.path, self.checkpoints, self.requests, self.journal, self.metrics, self.logs):
            if folder.is_symlink():
                continue  # what lies beyond is not the run's
            for name in _names(folder):
                leftover = folder / name
                try:
                    old = name.startswith(durable.TEMPORARY) and is_stale(leftover)
                    if old or name.startswith(durable.TRASH):
                        durable.delete_tree(leftover)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problems.append(f'cannot remove "{leftover}": {error.strerror or error}')
        return problems

    def highest_attempt(self) -> int:
        """The highest attempt number that any file of the run bears, 0 for none.

        An OSError, other than a folder that is not there, is raised: a number must never be given twice.
        """
        names = (name for folder in (self.checkpoints, self.logs, self.metrics) for name in _names(folder))
        matches = (_OF_AN_ATTEMPT.fullmatch(name) for name in names)
        return max((int(m[1] or m[2] or m[3]) for m in matches if m), default=0)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace `status.json` whole. Not fsynced: it is renewed soon, and nothing is decided from it."""
        data = msgspec.json.encode({"schema": Schema.STATUS, **status})
        try:
            durable.replace_file(self.status_json, data + b"\n", durable=False)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _overwrite(self.status_json, data + b"\n")

    def read_status(self) -> dict[str, Any] | None:
        """The latest snapshot; None where there is none, or it can't be read as one."""
        with contextlib.suppress(OSError, IntegrityError):
            data = durable.read_file(self.status_json, _STATUS_LIMIT)
            status = safejson.parse_object(data, what=f'"{self.status_json}"', limit=_STATUS_LIMIT)
            return status if status.get("schema") == Schema.STATUS else None
        return None

    def _made_anew(self, damage: IntegrityError) -> Created:
        generations = _generations(self.checkpoints)
        run_id = self._run_id_of(generations)
        if generations and run_id is None:
            raise damage
        if isinstance(damage, Incomplete):
            fresh = uuid.uuid4().hex
            run = self._write_run(run_id or fresh)
            note = f"{damage}; made it anew from the run's generations" if run_id else None
            return Created(run, note, new=run.run_id == fresh)
        aside = self.path / f"run.json.damaged-{time.time_ns()}"
        self.run_json.rename(aside)
        run = self._write_run(run_id or uuid.uuid4().hex)
        source = "from the run's generations" if run_id else "with a new run id, as it has no generation"
        return Created(run, f'{damage}; made it anew {source}; the old one is "{aside.name}"')

    def _write_run(self, run_id: str) -> Run:
        run = Run(run_id, time.time(), hostname())
        # Under a temporary name first: a kill in the middle would leave half a file that nobody may rewrite.
        temporary = self.path / f"{durable.TEMPORARY}run-{uuid.uuid4().hex}"
        durable.write_file(temporary, msgspec.json.encode(run) + b"\n")
        try:
            durable.rename_to_free_name(temporary, self.run_json)
        except FileExistsError:
            return self.read_run()
        finally:
            temporary.unlink(missing_ok=True)
        durable.fsync_dir(self.path)
        return run

    def _run_id_of(self, generations: list[Path]) -> str | None:
        """The run id that all readable generations agree on; None where there is none or they do not."""
        found = {_run_id_in(generation) for generation in generations} - {None}
        return found.pop() if len(found) == 1 else None


def _overwrite(path: Path, data: bytes) -> None:
    """A full disk takes no second file: the blocks that are there take what is to be told, that it is full."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:  # nobody else's file, under another name
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def _generations(checkpoints: Path) -> list[Path]:
    """Everything that has a generation's name, set aside or not."""
    return [checkpoints / name for name in _names(checkpoints) if name.startswith("step-")]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _run_id_in(generation: Path) -> str | None:
    with contextlib.suppress(OSError, IntegrityError):
        data = durable.read_file(generation / "index.json", _INDEX_LIMIT)
        run_id = safejson.parse_object(data, what="index", limit=_INDEX_LIMIT).get("run_id")
        return run_id if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id) else None
    return None
