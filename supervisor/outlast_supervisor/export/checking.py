"""Have an export loaded twice in a fresh process of the job's Python: alone, and by the library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast_jobs.catalog import resolve_job
from outlast_jobs.generation import Index
from outlast_jobs.jobfile import Job, JobFileError, load_job
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import linux, spawn
from outlast_supervisor.doctor.interpreter import python_of
from outlast_supervisor.quick.ends import Failed
from outlast_supervisor.targets import is_run

from .choosing import UNUSABLE
from .place import Tell

_UNDECIDED = 2
_PROBE = Path(__file__).parent / "probe" / "twice.py"


class Python(Struct, frozen=True):
    """An interpreter, as it is to be started, and what makes it the one to take."""

    words: tuple[str, ...]
    what: str
    env: Mapping[str, str]
    cwd: str | None = None


def pythons(argument: str, run: RunDirectory, asked: str | None) -> Iterator[Python]:
    """Those to try, in order: the one asked for alone, or the job's and then our own.

    The job is the one in a file that the person named: nothing is executed because a run directory says so.
    """
    env = spawn.worker_environment(os.environ, {}, {})
    if asked is not None:
        yield Python((asked,), f'"{asked}"', env)
        return
    job = _job_named(argument, run)
    if job is not None:
        theirs = spawn.worker_environment(os.environ, job.env, {})
        found = python_of(job, theirs)
        if found is not None:
            yield Python(found[0], f'the job\'s Python "{found[0][0]}"', theirs, job.workdir)
    yield Python((sys.executable,), f'the Python of outlast "{sys.executable}"', env)


def checked(
    export: Path, generation: str, index: Index, tried: Iterator[Python], tell: Tell
) -> dict[str, Any]:
    """What loading it showed. Failed (65) where it does not load or the two differ, (2) where no Python can."""
    unable = []
    for python in tried:
        said = _ask(python, export, generation)
        if problem := said.get("unable"):
            unable.append(f"{python.what} {problem}")
            continue
        for before in unable:
            tell(f"{before}; loaded by {python.what}")
        _hold(said, index)
        return said
    raise Failed(
        f"the copy could not be loaded, so nothing was exported: {'; '.join(unable)}; "
        "name a Python that has torch and outlast with --python",
        _UNDECIDED,
    )


def _hold(said: Mapping[str, Any], index: Index) -> None:
    problem = said.get("error", "")
    if not problem and said["alone"] != said["library"]:
        problem = f"load.py and the library come to different states: {said.get('difference')}"
    elif not problem and said["step"] != index.step:
        problem = f"it is of step {said['step']}, its index says {index.step}"
    elif not problem and index.state_sha256 not in (None, said["library"]):
        problem = f"its state has the digest {said['library']}, its index says {index.state_sha256}"
    if problem:
        raise Failed(f"the copy does not load as it should, so nothing was exported: {problem}", UNUSABLE)


def _ask(python: Python, export: Path, generation: str) -> dict[str, Any]:
    supervisor = os.getpid()

    def prepare() -> None:
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)

    command: Sequence[str] = [*python.words, str(_PROBE), str(export), str(export / generation)]
    try:
        done = subprocess.run(
            command,
            env=dict(python.env),
            cwd=python.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            preexec_fn=prepare,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"unable": f"cannot be started: {getattr(error, 'strerror', None) or error}"}
    try:
        said = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
        if isinstance(said, dict) and "unable" in said:
            return said
    except (ValueError, IndexError):
        pass
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [_ending(done.returncode)])[-1]
    return {"unable": f"did not say what it found: {last[:300]}"}


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"it was ended by {signal.Signals(-code).name}"


def _job_named(argument: str, run: RunDirectory) -> Job | None:
    if is_run(Path(argument)):
        return None
    try:
        job = load_job(resolve_job(argument))
        return job if os.path.samefile(job.run_dir, run.path) else None
    except (JobFileError, OSError):
        return None
