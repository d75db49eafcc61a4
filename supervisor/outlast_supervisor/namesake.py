"""Two jobs with one run directory: the second would go on from the first's checkpoints, and call that its own."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.jobfile import Job, job_from_resolved, load_job
from outlast_jobs.rundir import RunDirectory

from .helper import bounded
from .startup import code_digest, digests_of

_MAX = 1 << 20
_PATIENCE = 3.0  # seconds for a look at the other job's file
_SHOWN = 400  # characters
_CURE = "give each job a name or a run_dir of its own"


def former_job(run: RunDirectory, job: Job | None = None) -> Job | None:
    """The job as its latest start resolved it; None where it is not known, or is of the same file as ``job``."""
    try:
        text = durable.read_file(run.job_yaml, _MAX).decode()
        if job is not None and job.source is not None and f"\nsource: {job.source}\n" in text:
            return None  # nearly always so, and YAML takes a start some milliseconds
        return job_from_resolved(text)
    except (OSError, ValueError):
        return None


def namesake(former: Job | None, job: Job) -> str:
    """The file of another job that still has this run directory; empty where there is none.

    A job file that was moved, or is a copy that asks for the same with the same code, is the same job. Of bare
    commands the script tells which job it is. One whose file system does not answer is no rival now.
    """
    found: list[str] = []
    if former is not None:
        bounded(lambda: found.append(_other(former, job)), _PATIENCE)
    return "".join(found)


def _other(former: Job, job: Job) -> str:
    if former.source is None or job.source is None:
        if former.source is not None or job.source is not None:
            return ""
        then, now = _script(former), _script(job)
        apart = then and now and _differ(then, now) and code_digest(former) != code_digest(job)
        return then if apart else ""
    if not _differ(former.source, job.source):
        return ""
    try:
        still = load_job(Path(former.source))
    except (OSError, ValueError):
        return ""
    if os.path.realpath(still.run_dir) != os.path.realpath(job.run_dir):
        return ""
    return former.source if digests_of(still) != digests_of(job) else ""


def owner(other: str) -> str:
    """Says whose run it was until now."""
    return f"it was last started from {_shown(other)}, another job: {_CURE}"


def warning(former: Job | None, job: Job, other: str) -> str:
    """What a start says first that goes on with what another job, or another command, has trained; else empty."""
    if other:
        return f"this run goes on from its checkpoints, and {owner(other)}"
    if former is None or former.command == job.command:
        return ""
    return f"the command was {_shown(shlex.join(former.command))}, whose run goes on; --fresh begins anew"


def of_tasks(environ: Mapping[str, str], run_dir: str) -> str:
    """What to say of a run that cannot be taken where Slurm starts many times: tasks of an array, or of a step."""
    task, tasks = environ.get("SLURM_ARRAY_TASK_ID", ""), environ.get("SLURM_STEP_NUM_TASKS", "")
    if task.isdigit() and not re.search(rf"(?<!\d){task}(?!\d)", run_dir):
        own = _shown(f"{run_dir}-{task}")
        return f"if all tasks of this job array start this run, give each its own: --run-dir {own}"
    if tasks.isdigit() and int(tasks) > 1:
        return f"srun starts this {int(tasks)} times: if all have this run, take srun --ntasks=1, or no srun"
    return ""


def _shown(text: str) -> str:
    """A name from the run directory, which others may write, as one line for a terminal."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f'"{plain if len(plain) <= _SHOWN else plain[: _SHOWN - 1] + "…"}"'


def _script(job: Job) -> str:
    for word in job.command:
        if word.endswith((".py", ".sh", ".pyz")):
            return os.path.join(job.workdir, word)
    return ""


def _differ(then: str, now: str) -> bool:
    """Whether both are there, and are two files."""
    try:
        return os.path.isfile(then) and not os.path.samefile(then, now)
    except OSError:
        return False
