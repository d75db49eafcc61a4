"""The first acts on a run directory that are worth a name: beginning anew, and knowing the code."""

from __future__ import annotations

import hashlib
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.errors import IntegrityError
from outlast_jobs.jobfile import Job, command_digest, job_digest, job_to_yaml
from outlast_jobs.locks import Busy, RunLock
from outlast_jobs.rundir import RunDirectory

_MAX_SCRIPT = 16 << 20


Former = tuple[RunDirectory, str]


class Overtaken(Exception):
    """Another start took the place that was made free for a new run."""

    def __init__(self, busy: Busy, old: Path) -> None:
        super().__init__(f'{busy.text}; it began anew as well, the old run is "{old}"')


def begin_anew(run: RunDirectory, lock: RunLock) -> tuple[RunDirectory, RunLock, Former | None]:
    """Keep the old run as RUN.old-N and take the new one. The caller holds the old lock.

    Of the old run is returned where it is now and its id: what is left of its attempts has to end as well.
    """
    if not run.journal.is_dir():
        return run, lock, None
    try:
        run_id = run.read_run().run_id
    except IntegrityError:
        run_id = ""
    number = 1
    while True:
        old = run.path.with_name(f"{run.path.name}.old-{number}")
        try:
            durable.publish_dir(run.path, old)
            break
        except FileExistsError:
            number += 1
    anew = RunLock(run)
    taken = anew.acquire()
    lock.release()
    if isinstance(taken, Busy):
        raise Overtaken(taken, old)
    return run, anew, (RunDirectory(old), run_id) if run_id else None


def code_digest(job: Job) -> str:
    """sha256 of the script that the command names: a mended one lifts a hold. Empty without one."""
    for word in job.command:
        path = Path(job.workdir, word)
        if path.suffix in (".py", ".sh", ".pyz") and path.is_file():
            with open(path, "rb") as file:
                return hashlib.sha256(file.read(_MAX_SCRIPT)).hexdigest()
    return ""


def digests_of(job: Job) -> dict[str, str]:
    """What tells a changed job from the same one: its file, its command, its code."""
    return {
        "job_digest": job_digest(job),
        "command_digest": command_digest(job),
        "code_digest": code_digest(job),
    }


def write_job(run: RunDirectory, job: Job) -> bool:
    """Store the job as resolved at this start; True where it differs from the one stored before."""
    text = job_to_yaml(job).encode()
    try:
        if durable.read_file(run.job_yaml, 1 << 20) == text:
            return False
        known = True
    except FileNotFoundError:
        known = False
    except ValueError:
        known = True  # damaged: it is written anew
    # values of env may be secrets, and a run directory may be shared
    durable.replace_file(run.job_yaml, text, mode=0o600 if job.env else 0o666)
    return known
