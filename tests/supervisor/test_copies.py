"""A run directory and a copy of it have one id: each ends what works in it, and nothing that works in the other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.bare import needs_mounts

from outlast_jobs.contract import Env
from outlast_jobs.locks import Held, RunLock
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.copies import works_elsewhere

SAYS = "print(1, flush=True); import time; time.sleep(1000)"
Works = Callable[..., int]


@pytest.fixture
def works() -> Iterator[Works]:
    """Starts a process that works in a folder by the id of a run, and ends it with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run_id: str, place: Path | str | None, *wrapper: str) -> int:
        mark = {Env.RUN_ID: run_id} | ({} if place is None else {Env.RUN: str(place)})
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", SAYS], stdout=subprocess.PIPE, env={**os.environ, **mark}
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """The run directory that is ours: we hold its lock."""
    made = RunDirectory(tmp_path / "run")
    lock = RunLock(made)
    assert isinstance(lock.acquire(), Held)
    made.create()
    yield made
    lock.release()


def test_what_works_in_a_copy_is_not_ours(tmp_path: Path, run: RunDirectory, works: Works) -> None:
    """Whichever of the two was made of the other, as long as both are there."""
    run_id = run.read_run().run_id
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    lock = RunLock(copy)
    assert isinstance(lock.acquire(), Held)
    there, here = works(run_id, copy.path), works(run_id, run.path)
    assert works_elsewhere(there, {run_id: run})
    assert not works_elsewhere(here, {run_id: run})
    assert works_elsewhere(here, {run_id: copy})
    lock.release()
    assert works_elsewhere(there, {run_id: run})  # its supervisor need not live
    copy.lock.unlink()
    assert works_elsewhere(there, {run_id: run})
    copy.lock.mkdir()
    assert not works_elsewhere(there, {run_id: run}), "what cannot be read may be ours"


def test_what_is_ours_is_ours_by_any_name(tmp_path: Path, run: RunDirectory, works: Works) -> None:
    """By a link, from before the folder was moved, and from before another run took its old place."""
    run_id = run.read_run().run_id
    link = tmp_path / "link"
    link.symlink_to(run.path)
    moved_from = tmp_path / "moved"
    for place in (link, moved_from, None, "not/absolute", ""):
        assert not works_elsewhere(works(run_id, place), {run_id: run}), place
    RunDirectory(moved_from).create()  # another run
    assert not works_elsewhere(works(run_id, moved_from), {run_id: run})


def test_a_job_that_a_worker_has_submitted_to_slurm_is_not_ours(run: RunDirectory, works: Works) -> None:
    """It has inherited the mark, its first process too, which that of our own job never has."""
    run_id = run.read_run().run_id
    first = works(run_id, run.path, "sh", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "sh")
    below = works(run_id, run.path, "env", f"SLURM_TASK_PID={first}")
    own = works(run_id, run.path, "env", f"SLURM_TASK_PID={os.getpid()}")
    assert [works_elsewhere(pid, {run_id: run}) for pid in (first, below, own)] == [True, True, False]


@needs_mounts
def test_what_is_ours_is_ours_on_another_mount(tmp_path: Path, run: RunDirectory, works: Works) -> None:
    """A path is looked up as the process sees it; a place that only it has does not make it another's."""
    run_id = run.read_run().run_id
    shutil.copytree(run.path, tmp_path / "copy")
    (tmp_path / "copy" / "lock").write_text("")
    mounted = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {run.path} {tmp_path}/copy && exec "$@"',
        "sh",
    )
    assert not works_elsewhere(works(run_id, tmp_path / "copy", *mounted), {run_id: run})
    assert works_elsewhere(works(run_id, tmp_path / "copy"), {run_id: run})
