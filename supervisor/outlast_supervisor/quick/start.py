"""`outlast run`, once its command line is read: find the job, and hand it to the supervisor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast_jobs.jobfile import Job, job_from_command, load_job, resolve_job
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.answering import answering
from outlast_supervisor.options import RunOptions

from . import loading
from .ends import our_errors, print_json


@our_errors()
def start(
    *, job: str | None, run_dir: str | None, after: tuple[str, ...], as_json: bool, **flags: Any
) -> int:
    """Supervise a job file, or the command in ``after`` where none is named; returns the exit code.

    Raises Failed where the job can't be read.
    """
    with answering(f'"{job or run_dir or "."}"'):
        asked = _job(job, run_dir, after)
    extra = after if job is not None else ()
    options = RunOptions(job=asked, extra=extra, **flags)
    from outlast_supervisor.supervise import supervise

    loading.done()
    code = supervise(options)
    if as_json:
        print_json(RunDirectory(Path(asked.run_dir)).read_status())
    return code


def _job(job: str | None, run_dir: str | None, after: tuple[str, ...]) -> Job:
    if job is not None:
        return load_job(resolve_job(job), run_dir=run_dir, extra=after)
    return job_from_command(after, run_dir, Path.cwd())
