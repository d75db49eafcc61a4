"""`outlast run`: its command line; what it does stands in `quick.start`."""

from __future__ import annotations

import difflib
from typing import Any

import click

from outlast_jobs.jobfile import shipped_jobs
from outlast_supervisor.commands.shared import EXIT_CODES, json_option, quiet_option
from outlast_supervisor.quick.start import start

_AFTER = "outlast.after"
_AS_OURS = "; a command and words for it stand after --"  # which were most likely given as ours


class TakesRest(click.Command):
    """Everything after `--` is the worker's, and is not looked at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[_AFTER] = tuple(args[cut + 1 :])
            args = args[:cut]
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, 0.75)
            cure = f'; did you mean "{near[0]}"?' if near else ""
            raise click.UsageError(f'no option "{error.option_name}"{cure}{_AS_OURS}', ctx) from error
        except click.UsageError as error:
            text = error.format_message().rstrip(".")
            if "unexpected extra" not in text:
                raise
            raise click.UsageError(f"{text}{_AS_OURS}", ctx) from error


def rest_of(ctx: click.Context) -> tuple[str, ...]:
    """What came after `--`."""
    found: tuple[str, ...] = ctx.meta.get(_AFTER, ())
    return found


class _Run(TakesRest):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs that ship with outlast"):
            formatter.write_text(", ".join(shipped_jobs()) or "none")
        super().format_epilog(ctx, formatter)


@click.command(
    cls=_Run, epilog=EXIT_CODES, options_metavar="[OPTIONS]", short_help="Supervise a job until it is done."
)
@click.argument("job", required=False, metavar="[JOB] [-- COMMAND_OR_ARGUMENTS...]")
@click.option(
    "--run-dir", type=click.Path(file_okay=False), help="Where the run lies; by default the job file says."
)
@click.option(
    "--from", "from_generation", metavar="GENERATION", help="Resume from this one and not from the newest."
)
@click.option("--fresh", is_flag=True, help="Begin anew in a new run; the old one is kept.")
@click.option("--release", is_flag=True, help="Start a run that is held: stopped by hand, or given up.")
@click.option("--takeover", is_flag=True, help="End another supervisor of this run on this host first.")
@click.option("--allow-rng-loss", is_flag=True, help="Go on where random streams cannot be restored.")
@click.option("-v", "--verbose", is_flag=True, help="Say more about each decision.")
@quiet_option
@json_option
@click.pass_context
def run(ctx: click.Context, /, job: str | None, **flags: Any) -> int:
    """Supervise a job until it is done.

    JOB is a job file, a folder with a job.yaml in it, or the name of a job that ships with outlast; arguments
    after -- are appended to its command. Without JOB, what follows -- is the command to run.
    """
    after = rest_of(ctx)
    if job is None and not after:
        raise click.UsageError("name a job, or a command after --", ctx)
    return start(job=job, after=after, **flags)
