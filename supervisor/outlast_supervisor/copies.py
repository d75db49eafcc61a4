"""Two run directories with one id, a copy and what it was made of: what works in the other one is not ours to end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.contract import Env
from outlast_jobs.errors import IntegrityError
from outlast_jobs.rundir import RunDirectory

from .processes import environment_of, was_submitted_by_worker

_LIMIT = 16 << 10  # bytes of a lock, which is one line


def works_elsewhere(pid: int, runs: Mapping[str, RunDirectory]) -> bool:
    """Whether a process that bears the id of one of these runs works for another, as in a directory that has this id.

    It works where its OUTLAST_RUN names a folder, in its own view of the files. Where nothing is there any more the
    run was moved, and what cannot be looked at may be ours: it is not elsewhere then. Waits for that file system.
    """
    told = dict(os.fsdecode(entry).partition("=")[::2] for entry in environment_of(pid))
    run = runs.get(told.get(Env.RUN_ID, ""))
    place = told.get(Env.RUN, "")
    if run is not None and was_submitted_by_worker(told):
        return True
    if run is None or not place.startswith("/") or place == str(run.path.absolute()):
        return False
    other = RunDirectory(Path(f"/proc/{pid}/root{place}"))
    try:
        if os.path.samefile(other.path, run.path) or other.read_run().run_id != run.read_run().run_id:
            return False
        # Mounted twice it is another device, or has other inodes. We have signed the lock of ours, and no other.
        return _signed(other) != _signed(run)
    except (OSError, IntegrityError):
        return False


def _signed(run: RunDirectory) -> bytes:
    try:
        return durable.read_file(run.lock, _LIMIT)
    except FileNotFoundError:
        return b""
