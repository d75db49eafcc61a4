"""`outlast jobs`: the jobs that ship with the tool."""

from __future__ import annotations

from pathlib import Path

import click

from outlast_jobs.jobfile import shipped_jobs
from outlast_supervisor.commands.shared import (
    SHOW_CODES,
    json_option,
    print_json,
    quiet_option,
    usage_errors,
)


@click.command(epilog=SHOW_CODES)
@quiet_option
@json_option
@usage_errors
def jobs(quiet: bool, as_json: bool) -> None:
    """List the jobs that ship with outlast; run one with "outlast run NAME"."""
    found = {name: (_about(path), path) for name, path in shipped_jobs().items()}
    if as_json:
        print_json(
            [{"name": name, "about": about, "file": str(path)} for name, (about, path) in found.items()]
        )
        return
    width = max((len(name) for name in found), default=0)
    for name, (about, _) in found.items():
        print(name if quiet else f"{name:<{width}}  {about}".rstrip())


def _about(path: Path) -> str:
    """The comment at the head of the job file."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""
