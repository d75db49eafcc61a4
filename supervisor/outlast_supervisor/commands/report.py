"""`outlast report`: one HTML page about a run; its figures as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from outlast_supervisor.commands.shared import (
    ABOUT_RUN,
    SHOW_CODES,
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    tells_waits,
    usage_errors,
)


@click.command(epilog=ABOUT_RUN + SHOW_CODES)
@click.argument("run", required=False)
@click.option(
    "-o", "--output", metavar="FILE", help='Where it goes; "-" is stdout. [default: NAME.html here]'
)
@quiet_option
@json_option
@usage_errors
@tells_waits
def report(run: str | None, output: str | None, quiet: bool, as_json: bool) -> None:
    """Write one HTML page: the loss over all attempts, the attempts in time, and goodput.

    Goodput is the share of the time since the first start that went into steps which count. The page needs no network
    and no script. It may be made while the run runs; nothing of the run is touched.
    """
    from outlast_supervisor.reporting.figures import figures
    from outlast_supervisor.reporting.gather import gather
    from outlast_supervisor.reporting.page import page
    from outlast_supervisor.targets import find_run

    found = gather(find_run(run))
    if as_json:
        print_json(figures(found))
        if output is None:
            return
    data = page(found).encode(errors="replace")  # a name or a reason may be no text
    if output == "-":
        sys.stdout.buffer.write(data)
        return
    path = Path(output or f"{found.name.replace('/', '-')}.html")
    _write(path, data)
    if not quiet:
        count = len(found.attempts)
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        say(f"outlast: {path}: {attempts}, {_goodput(found.goodput.share)}")


def _write(path: Path, data: bytes) -> None:
    from outlast_jobs import durable

    if path.is_dir():
        raise Failed(f'"{path}" is a folder; name a file in it')
    try:
        if path.exists() and not path.is_file():  # a pipe or a device is written to, never replaced
            path.write_bytes(data)
        else:
            durable.replace_file(path.resolve() if path.is_symlink() else path, data, durable=False)
    except OSError as error:
        raise Failed(f'can\'t write "{path}": {error.strerror}; name another place with --output') from error


def _goodput(share: float | None) -> str:
    return "no steps recorded" if share is None else f"goodput {share:.1%}"
