"""`outlast new`: a job file and a training script to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from outlast_jobs.new import write_new
from outlast_supervisor.commands.shared import (
    SHOW_CODES,
    json_option,
    print_json,
    quiet_option,
    usage_errors,
)


@click.command(epilog=SHOW_CODES)
@click.argument("name")
@quiet_option
@json_option
@usage_errors
def new(name: str, quiet: bool, as_json: bool) -> None:
    """Write NAME/job.yaml and NAME/train.py, which run as they are."""
    files = write_new(name, Path())
    if as_json:
        print_json([str(file) for file in files])
    elif not quiet:
        for file in files:
            print(f"wrote {file}")
        print(f"now: outlast run {files[0]}")
