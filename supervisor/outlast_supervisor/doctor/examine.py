"""All checks of a job in the order in which a person wants to read them; it looks, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from outlast_jobs.errors import IntegrityError
from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.history import History, read_history
from outlast_jobs.jobfile import Job
from outlast_jobs.rundir import RunDirectory

from ..schedulers.around import is_in_slurm
from ..supervise import Refused, preflight
from . import disk, elsewhere, in_slurm, in_systemd, interpreter, lead, machine, own, past, scratch, state
from .line import Line, failure

PATIENCE = 20.0  # seconds for a file system to answer


def examine(job: Job) -> Iterator[Line]:
    """Look and judge, a line at a time."""
    me = own.look(os.environ)
    run = RunDirectory(Path(job.run_dir).absolute())
    read = scratch.within(lambda: _read(run, job), PATIENCE)
    if read is None:  # nothing else of this file system may be touched: it would hold us too
        yield from disk.place(None, str(run.path), PATIENCE)
        found, known = None, past.Past()
    else:
        found, known = read
        yield from state.start(found, job)
    if job.adopt is not None:
        known = structs.replace(known, script=True)
    kind = around(me)
    yield from _around(kind, me, job, known)
    yield from lead.grace(job, known)
    if kind != "slurm":  # it appends to what it has emptied before, so there the descriptor says nothing
        yield from own.log(me)
    here = machine.look()
    if read is not None:
        yield from _place(run, job, known, here)
    yield from machine.verdict(here)
    yield from _command(job)
    if found is not None:
        yield from state.cost(found, job, known)


def around(me: own.Own) -> str:
    """What runs this process: slurm, container, systemd, cron or shell."""
    if is_in_slurm(me.env):
        return "slurm"
    if me.env.get("KUBERNETES_SERVICE_HOST") or me.pid == 1:
        return "container"
    if in_systemd.unit_of(me) and "INVOCATION_ID" in me.env:
        return "systemd"
    return "cron" if any(name in ("cron", "crond") for name in me.above) else "shell"


def _around(kind: str, me: own.Own, job: Job, known: past.Past) -> Iterator[Line]:
    match kind:
        case "slurm":
            yield from in_slurm.verdict(in_slurm.look(me), me, job, known)
        case "container":
            yield from elsewhere.in_container(me, job)
        case "systemd":
            yield from in_systemd.verdict(in_systemd.look(me), job)
        case "cron":
            yield from elsewhere.under_cron(me)
        case _:
            yield from elsewhere.in_shell(me, job)


def _read(run: RunDirectory, job: Job) -> tuple[state.State, past.Past]:
    known = History()
    try:
        if run.journal.is_dir():
            known = read_history(run)
        return state.read(run, job, known), past.past(run, known)
    except (OSError, IntegrityError) as error:
        trouble = f'"{run.path}" cannot be read: {getattr(error, "strerror", None) or error}'
        return state.State(known, {}, None, False, "", trouble=trouble), past.Past()


def _place(run: RunDirectory, job: Job, known: past.Past, here: machine.Machine) -> Iterator[Line]:
    kind = filesystem_kind(run.path)
    memory = kind.type in ("tmpfs", "ramfs")
    tried = scratch.within(lambda: scratch.attempt(run.path, known.size or 0, memory), PATIENCE)
    yield from disk.place(tried, str(run.path), PATIENCE)
    yield from disk.lock(kind, tried)
    if tried is not None:
        yield from disk.space(scratch.room(run.path), tried, job.keep, known, here.file_bytes)
    yield from disk.clock_of(tried)


def _command(job: Job) -> Iterator[Line]:
    try:
        preflight(job)
    except Refused as refused:
        yield failure("command", str(refused), "mend the command in the job file")
        return
    yield from interpreter.verdict(interpreter.look(job, os.environ), job)
