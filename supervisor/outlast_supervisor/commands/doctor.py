"""`outlast doctor`: before the run, what would keep it from starting, saving, being warned or going on."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from outlast_jobs.contract import Answer
from outlast_jobs.jobfile import load_job, resolve_job
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import json_option, print_json, quiet_option, usage_errors
from outlast_supervisor.doctor.line import Line, answer

_CODES = """\b
Exit codes:
  0    nothing fails; there may be warnings
  1    something fails: the run would not start, or would lose work
  2    nothing fails, and something could not be decided
  64   bad usage or job file
"""
_HANG = 22  # columns of level and check, before the text
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red", "undecided": "magenta"}


@click.command(cls=TakesRest, epilog=_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option("--run-dir", type=click.Path(file_okay=False), help="Where the run lies.")
@quiet_option
@json_option
@click.pass_context
@usage_errors
def doctor(ctx: click.Context, job: str, run_dir: str | None, quiet: bool, as_json: bool) -> Answer:
    """Check, where the run will be started, whether it will be warned, can save, and can go on.

    Run it the way the job will be run: in the batch script, the unit, the crontab. It starts nothing, takes no
    lock of the run, and leaves nothing behind. --quiet shows only what is not ok.
    """
    from outlast_supervisor.doctor.examine import examine

    found = load_job(resolve_job(job), run_dir=run_dir, extra=rest_of(ctx))
    lines = list(_shown(examine(found), show=not as_json, quiet=quiet))
    code = answer(lines)
    if as_json:
        print_json({"answer": int(code), "checks": [_plain(line) for line in lines]})
    return code


def _shown(lines: Iterator[Line], *, show: bool, quiet: bool) -> Iterator[Line]:
    """Print each line as it comes: some checks take seconds."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 0
    coloured = terminal and not os.environ.get("NO_COLOR")
    for line in lines:
        if show and not (quiet and line.level == "ok"):
            level = line.level.ljust(9)
            if coloured:
                level = click.style(level, fg=_COLOURS[line.level])
            first, *rest = _wrapped(line.text, width)
            cure = [f"{'  ' if n else '→ '}{text}" for n, text in enumerate(_wrapped(line.cure, width))]
            click.echo(f"{level} {line.check.ljust(11)} {first}")
            for text in (*rest, *(cure if line.cure else ())):
                click.echo(f"{'':{_HANG}}{text}")
        yield line


def _wrapped(text: str, width: int) -> list[str]:
    """A text as lines of a column; whole where there is no width, as in a file or a pipe."""
    if not width:
        return [text]
    return textwrap.wrap(
        text, max(width - _HANG - 2, 20), break_long_words=False, break_on_hyphens=False
    ) or [""]


def _plain(line: Line) -> dict[str, Any]:
    return {"level": line.level, "check": line.check, "text": line.text, "cure": line.cure or None}
