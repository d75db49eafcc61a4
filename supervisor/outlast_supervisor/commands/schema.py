"""`outlast schema`: the JSON Schema of the job file."""

from __future__ import annotations

import click

from outlast_jobs.schema import json_schema
from outlast_supervisor.commands.shared import SHOW_CODES, json_option, print_json, quiet_option


@click.command(epilog=SHOW_CODES)
@quiet_option
@json_option
def schema(quiet: bool, as_json: bool) -> None:
    """Print the JSON Schema of the job file, for editors."""
    print_json(json_schema())
