"""The one command by which every scheduler starts a job: absolute, since none of them has the caller's PATH."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from outlast_jobs.jobfile import Job


def start_command(
    job: Job, *, run_dir: str | None = None, quiet: bool = False, extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """Words that start this job from any folder and with any environment.

    `run_dir` and `extra` are what the command line gave beside the job file; without `run_dir` the job file says.
    Raises ValueError for a job without a file: a scheduler starts it again when this process is long gone.
    """
    if job.source is None:
        raise ValueError("a scheduler needs a job file; write one with: outlast new NAME")
    # -P: a scheduler starts in a folder of its own choice, and a "queue.py" that lies there is not ours
    words = [sys.executable, "-P", "-m", "outlast_supervisor.cli", "run", str(Path(job.source).absolute())]
    if run_dir is not None:
        words += ["--run-dir", str(Path(run_dir).absolute())]
    if quiet:
        words.append("--quiet")
    return (*words, *(("--", *extra) if extra else ()))
