"""`outlast slurm`: the batch script by which Slurm runs a job, printed or submitted."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from outlast_jobs.jobfile import load_job, resolve_job
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import (
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.schedulers.slurm import query_env, submit_env
from outlast_supervisor.schedulers.slurm_script import TASK, Script, slurm_script

_CODES = """\b
Exit codes:
  0    printed, or submitted
  1    sbatch is not there, or refused
  2    sbatch did not answer in time: look whether the job is queued
  64   bad usage or job file
  73   the folder for the output cannot be made
"""
_GLANCE = 10.0
"""Seconds for squeue, without which a job can be submitted as well."""
_PATIENCE = 60.0
"""Seconds for sbatch: a busy controller takes some, and after that nobody knows what became of the job."""


@click.command(cls=TakesRest, epilog=_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option("--submit", is_flag=True, help="Submit the script, and print the job's id.")
@click.option("--array", metavar="TASKS", help='Several runs, such as "1-5%2": task N has the run RUN-N.')
@click.option("--run-dir", type=click.Path(file_okay=False), help="Where the run lies.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="An sbatch option; wins over the job file's. Can be repeated.",
)
@quiet_option
@json_option
@click.pass_context
@usage_errors
def slurm(
    ctx: click.Context,
    job: str,
    submit: bool,
    array: str | None,
    run_dir: str | None,
    options: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Print the batch script by which Slurm runs a job, or submit it.

    JOB is as for "outlast run"; arguments after -- are appended to its command. In those of an array {task} is
    the task's number.
    """
    extra = rest_of(ctx)
    found = load_job(resolve_job(job), run_dir=run_dir, extra=extra)
    script = slurm_script(found, run_dir=run_dir, array=array, options=options, extra=extra)
    told = {"script": script.text, "output": script.output, "run_dir": script.run_dir}
    if submit:
        _make_folder(script)
        if not quiet:
            _tell_others(script.name)
        number = _submit(script)
        if as_json:
            print_json({"job": number, **told})
            return
        print(number)
        if not quiet:
            run = shlex.quote(script.run_dir.replace(TASK, "TASK"))
            say(f"follow: outlast logs -f {run}\nstop: outlast stop {run}, or scancel {number}")
        return
    if as_json:
        print_json(told)
    else:
        sys.stdout.buffer.write(os.fsencode(script.text))
    folder = Path(script.run_dir).parent
    if not folder.is_dir() and not quiet:
        say(f'outlast: Slurm makes no folders, and a job without its output fails; make "{folder}" first')


def _make_folder(script: Script) -> None:
    """Slurm makes no folder for the output; without it the job fails, and nothing says why."""
    folder = Path(script.run_dir).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f'cannot make "{folder}" for the output: {error.strerror}', 73) from error


def _tell_others(name: str) -> None:
    """Say which jobs of this name are there: two of one run do no harm, and the later one is mostly a slip."""
    words = ["squeue", "--me", "--noheader", f"--name={name}", "--format=%i %T"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_GLANCE, env=query_env(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return
    found = [f"{line.split()[0]} ({line.split()[-1]})" for line in done.stdout.decode().splitlines() if line]
    if found and done.returncode == 0:
        say(
            f'outlast: there are jobs of the name "{name}" already: {", ".join(found)}; '
            "of two that have one run the later ends with 69 while the other trains"
        )


def _submit(script: Script) -> str:
    """The job's id, as sbatch gives it."""
    asked = {key: os.environ[key] for key in ("SBATCH_DEPENDENCY",) if key in os.environ}
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=os.fsencode(script.text),
            capture_output=True,
            timeout=_PATIENCE,
            env={**submit_env(os.environ), **asked},
        )
    except FileNotFoundError:
        raise Failed(
            'cannot submit: no "sbatch" on this machine; print the script here (leave --submit out), and give it '
            "to sbatch where Slurm is",
            1,
        ) from None
    except OSError as error:
        raise Failed(f'cannot submit: "sbatch" does not start: {error.strerror}', 1) from error
    except subprocess.TimeoutExpired:
        raise Failed(
            f"cannot tell whether the job is queued: sbatch gave no answer in {_PATIENCE:g} s; look with: "
            "squeue --me",
            2,
        ) from None
    told = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        raise Failed(f"sbatch refused: {told or f'exit code {done.returncode}, and no word'}", 1)
    if told:
        say(told)
    return done.stdout.decode(errors="replace").strip().partition(";")[0]
