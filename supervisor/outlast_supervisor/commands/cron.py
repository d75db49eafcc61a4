"""`outlast cron`: the lines by which cron carries a job on, printed, or put into the user's crontab."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from outlast_jobs.catalog import is_shipped, resolve_job
from outlast_jobs.jobfile import Job, JobFileError, load_job
from outlast_jobs.units import parse_duration
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import (
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.schedulers import cron as lines
from outlast_supervisor.schedulers import crontab
from outlast_supervisor.schedulers.start import start_command

_CODES = """\b
Exit codes:
  0    printed, or the crontab is as asked
  1    the crontab could not be changed
  64   bad usage or job file
"""
# what decides how a training runs, is often set in a shell, and is not there under cron
_MISSED = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
_MAIL = "/usr/sbin/sendmail"


@click.command(cls=TakesRest, epilog=_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option("--every", default="5m", show_default=True, help="How often cron starts it.")
@click.option("--install", is_flag=True, help="Put the lines into your crontab.")
@click.option("--remove", is_flag=True, help="Take them out of it again; a running job goes on.")
@click.option(
    "--run-dir", type=click.Path(file_okay=False), help="Where the run lies; else the job file says."
)
@click.option("--log", type=click.Path(dir_okay=False), help="Append errors to this file; no mail is sent.")
@quiet_option
@json_option
@click.pass_context
@usage_errors
def cron(
    ctx: click.Context,
    /,
    job: str,
    every: str,
    install: bool,
    remove: bool,
    run_dir: str | None,
    log: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Print the crontab lines that start JOB at each boot and every few minutes, or --install them.

    Every start but the first ends at once and silently, and so does each one once the job is done. What is wrong
    is said once, which cron mails.
    """
    if install and remove:
        raise click.UsageError("--install and --remove exclude each other", ctx)
    if remove:
        key = _key_to_remove(job, run_dir)
        changed = _edited(lambda text: lines.without_block(text, key))
        said = "taken out of the crontab" if changed else "nothing to take out: the crontab has no lines"
        _report(said, key, changed=changed, quiet=quiet, as_json=as_json)
        return
    loaded = load_job(resolve_job(job), run_dir=run_dir, extra=rest_of(ctx))
    key = lines.key_of(str(loaded.source), _run_dir(loaded, run_dir))
    made = lines.block(
        key, _command(loaded, run_dir, rest_of(ctx), log), lines.schedule(parse_duration(every))
    )
    if not quiet:
        _warn(loaded, log)
    if not install:
        _print(made, as_json)
        return
    mailed = True

    def change(text: bytes) -> bytes:
        nonlocal mailed
        mailed = lines.is_mailed(text, key)
        return lines.with_block(text, key, made)

    changed = _edited(change)
    if log is None and not mailed and not quiet:
        say("outlast: MAILTO is empty in your crontab, so errors are lost; have them written with --log FILE")
    said = f"cron starts it at each boot and every {every}" if changed else "already in the crontab"
    _report(said, key, changed=changed, quiet=quiet, as_json=as_json)


def _command(job: Job, run_dir: str | None, extra: tuple[str, ...], log: str | None) -> str:
    words = start_command(job, run_dir=_run_dir(job, run_dir), quiet=True, extra=extra)
    there = [folder for folder in os.environ.get("PATH", "").split(":") if os.path.isdir(folder)]
    if log is not None:
        log = os.path.abspath(log)
        if not os.path.isdir(os.path.dirname(log)):
            raise Failed(f'no folder "{os.path.dirname(log)}" for the log; make it first')
    return lines.command_line(words, path=lines.carried_path(":".join(there), job.env), log=log)


def _run_dir(job: Job, asked: str | None) -> str | None:
    """The run directory where the line has to name it: a shipped job's depends on the folder of the caller."""
    return job.run_dir if asked is not None or is_shipped(job.source) else None


def _key_to_remove(job: str, run_dir: str | None) -> str:
    """The mark of a job's lines; its file may be wrong by now, or gone."""
    try:
        path = resolve_job(job)
    except JobFileError:
        path = Path(job)
        if path.suffix not in (".yaml", ".yml"):
            path /= "job.yaml"
    if path.exists() and is_shipped(path):
        loaded = load_job(path, run_dir=run_dir)
        return lines.key_of(str(loaded.source), loaded.run_dir)
    where = os.path.normpath(os.path.abspath(os.path.expanduser(run_dir))) if run_dir is not None else None
    return lines.key_of(os.path.abspath(path), where)


def _edited(change: crontab.Change) -> bool:
    try:
        return crontab.edit(change)
    except crontab.CrontabError as error:
        raise Failed(str(error), 1) from error


def _warn(job: Job, log: str | None) -> None:
    missed = [name for name in _MISSED if os.environ.get(name) and name not in job.env]
    if missed:
        say(
            f"outlast: cron starts the job without {', '.join(missed)}; what it needs, put under env: in its file"
        )
    if log is None and not shutil.which(_MAIL):
        say("outlast: this machine sends no mail, so errors are lost; have them written with --log FILE")


def _print(made: bytes, as_json: bool) -> None:
    text = os.fsdecode(made)
    if as_json:
        print_json({"lines": text.splitlines()})
    else:
        click.echo(made, nl=False)


def _report(said: str, key: str, *, changed: bool, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json({"job": key, "changed": changed})
    elif not quiet:
        say(f"outlast: {key}: {said}")
