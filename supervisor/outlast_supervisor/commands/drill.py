"""`outlast drill`: attack a copy of a job of one's own, and check what is promised after each attack."""

from __future__ import annotations

from typing import Any

import click

from outlast_jobs.contract import Answer
from outlast_jobs.jobfile import load_job, resolve_job
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import (
    Failed,
    exit_on_term,
    json_option,
    print_json,
    quiet_option,
    spare_adopted,
    usage_errors,
)

DRILL_CODES = """\b
Exit codes:
  0    it held
  1    it did not: a promise was broken by an attack
  2    undecided: what was seen decides nothing
  64   bad usage or job file
  73   the scratch folder cannot be written
"""


@click.command(cls=TakesRest, epilog=DRILL_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]", required=False)
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), default=5.0, help="How long to attack (5)."
)
@click.option("--seed", type=int, default=1, help="The order of the attacks and their instants (1).")
@click.option("--only", metavar="NAMES", default="", help="Only these attacks or classes, comma separated.")
@click.option("--steps", type=click.IntRange(20), help="Steps of each scratch run (60).")
@click.option("--list", "listed", is_flag=True, help="Print the attacks and their classes, and do nothing.")
@click.option("--keep", is_flag=True, help="Keep the scratch runs.")
@quiet_option
@json_option
@click.pass_context
@usage_errors
def drill(
    ctx: click.Context, /, job: str | None, only: str, listed: bool, quiet: bool, as_json: bool, **more: Any
) -> int:
    """Attack a copy of a job in scratch runs, and check what is promised after each attack.

    JOB is run once undisturbed, some steps, and then again and again under attack: signals to the trainer,
    its group, the supervisor or all of them at each phase of a run and at each part of a save; a disk that
    takes no more; rot in the newest generation. The run of the job itself is not touched.
    """
    from outlast_supervisor.drill import attacks, report
    from outlast_supervisor.drill.drilling import STEPS, Driller, Options
    from outlast_supervisor.telling import Teller

    chosen = attacks.chosen([word.strip() for word in only.split(",") if word.strip()])
    if listed:
        _list(as_json, chosen)
        return 0
    if job is None:
        raise click.UsageError("missing argument: JOB", ctx)
    asked = load_job(resolve_job(job), extra=rest_of(ctx))
    spare_adopted(asked, "a drill")
    steps = more.pop("steps") or STEPS
    options = Options(asked, tuple(chosen), steps=steps, **more)
    teller = Teller("drill", quiet=quiet)
    exit_on_term()  # what was started is ended, and the scratch folder removed
    try:
        found = Driller(options, teller.say).drill()
    except OSError as error:
        where = f' "{error.filename}"' if error.filename else ""
        raise Failed(f"cannot write the scratch runs{where}: {error.strerror or error}", 73) from error
    if as_json:
        print_json(report.as_json(found))
    elif not quiet or found.answer != Answer.HELD:
        report.show(found)
    return int(found.answer)


def _list(as_json: bool, chosen: list[Any]) -> None:
    from outlast_supervisor.drill import attacks

    if as_json:
        print_json(
            {"attacks": [a.name for a in chosen], "names": attacks.names(), "points": dict(attacks.POINTS)}
        )
        return
    print("\n".join(f"{a.name:28} {attacks.POINTS[a.point]}" for a in chosen))
    print(f"names that --only takes beside these: {', '.join(attacks.names())}")
