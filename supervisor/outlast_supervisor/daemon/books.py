"""What a daemon leaves in DIR/.outlast: how the jobs stand, for people and for the daemon after it.

Losing it loses no training: who runs is known from the processes, what is done or held from the runs. Only then a
job that is done costs one more start, and a running one is told once more to read its file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlast_jobs import durable, safejson
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.identity import hostname
from outlast_jobs.rundir import RunDirectory

from .model import Past, Standing, State, Supervisor
from .outcome import final_state

_LIMIT = 64 << 20


class JobState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job file, as the daemon left it."""

    state: State
    reason: str
    run_dir: str = ""
    process: str = ""  # of the supervisor, where one runs
    slots: tuple[str, ...] = ()
    version: str = ""  # of the file, as the supervisor was last told, or as it was when it ended
    digest: str = ""
    code: int | None = None  # the exit code of the latest supervisor, where that is final for this version


class Books(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.DAEMON):
    """The content of state.json."""

    as_of: float = 0.0  # unix seconds
    host: str = ""
    draining: bool = False
    trouble: str = ""  # why the folder cannot be looked at
    running: int = 0  # supervisors that live, also of files that are gone
    jobs: dict[str, JobState] = {}


class Places:
    """Where the daemon's own files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.own = folder / ".outlast"
        self.state = self.own / "state.json"
        self.drain = self.own / "drain"
        self.logs = self.own / "logs"

    @property
    def lockable(self) -> RunDirectory:
        """What the lock is taken of: a daemon's lock is made as a run's is."""
        return RunDirectory(self.own)


def read_books(places: Places) -> Books | None:
    """What was left; None where there is nothing, or nothing that can be read."""
    with contextlib.suppress(OSError, IntegrityError, msgspec.ValidationError):
        data = durable.read_file(places.state, _LIMIT)
        tree = safejson.parse_object(data, what=f'"{places.state}"', limit=_LIMIT)
        if tree.get("schema") == Schema.DAEMON:
            return msgspec.convert(tree, Books)
    return None


def write_books(places: Places, books: Books) -> None:
    """Replace what was left. Not fsynced: see above."""
    durable.replace_file(places.state, msgspec.json.encode(books) + b"\n", durable=False)


def draw_up(
    standing: Mapping[str, Standing],
    supervisors: Mapping[str, Supervisor],
    past: Mapping[str, Past],
    *,
    draining: bool,
    trouble: str,
) -> Books:
    """What is to be left now; supervisors and past by run directory."""
    jobs: dict[str, JobState] = {}
    for file, stands in standing.items():
        supervisor, before = supervisors.get(stands.run_dir), past.get(stands.run_dir)
        known = JobState(stands.state, stands.reason, stands.run_dir)
        if supervisor is not None and stands.state in (State.RUNNING, State.STOPPING):
            known = msgspec.structs.replace(
                known,
                process=str(supervisor.process),
                slots=supervisor.slots,
                version=supervisor.version,
                digest=supervisor.digest,
            )
        elif before is not None and final_state(before.code) is stands.state:
            known = msgspec.structs.replace(known, version=before.version, code=before.code)
        jobs[file] = known
    return Books(time.time(), hostname(), draining, trouble, len(supervisors), jobs)


def past_of(books: Books) -> dict[str, Past]:
    """What is to be remembered of runs that came to an end, by run directory."""
    return {
        job.run_dir: Past(job.version, job.code, 0, 0.0, job.reason)
        for job in books.jobs.values()
        if job.run_dir and final_state(job.code) is not None
    }


def is_draining(places: Places) -> bool:
    """Whether nothing is to run in this folder until a person resumes it."""
    return os.path.lexists(places.drain)
