"""`outlast status`: its command line; what it does stands in `quick.show`."""

from __future__ import annotations

import click

from outlast_supervisor.commands.shared import SHOW_CODES, json_option, quiet_option
from outlast_supervisor.quick.show import show


@click.command(epilog=SHOW_CODES)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until interrupted.")
@click.option(
    "--details/--no-details", default=None, help="Say more of each run; by default of a single one."
)
@quiet_option
@json_option
def status(runs: tuple[str, ...], watch: bool, details: bool | None, quiet: bool, as_json: bool) -> None:
    """Show how runs are doing; first of all the steps that would be lost if one died now.

    RUN is a run directory, a folder of them, a job file or the name of a job; by default the run in the
    current folder, or all those in its folder "runs". In a folder that a daemon keeps, jobs that wait or are refused
    are listed below.
    """
    show(runs=runs, watch=watch, details=details, quiet=quiet, as_json=as_json)
