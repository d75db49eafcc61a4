"""`outlast prove`: show on a job of one's own that a resumed run is the uninterrupted one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import click

from outlast_jobs.contract import Answer
from outlast_jobs.jobfile import load_job, resolve_job
from outlast_jobs.rundir import RunDirectory
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

PROVE_CODES = """\b
Exit codes:
  0    it held
  1    it did not: a resumed run is another run, or a part that was left out was not noticed
  2    undecided: it could not be carried out, or it proves nothing
  64   bad usage or job file
  73   the folder of the proof cannot be written
"""


@click.command(cls=TakesRest, epilog=PROVE_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option("--steps", type=click.IntRange(2), help="Steps of each flow (40, or as many as the job has).")
@click.option(
    "--cut", "cuts", type=click.IntRange(1), multiple=True, help="Cut after this step; may be repeated."
)
@click.option("--tolerance", type=click.FloatRange(0), default=0.0, help="Largest difference allowed (0).")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only these flows: stop, kill, save, repeat, controls, or a part's name; may be repeated.",
)
@click.option(
    "--output", type=click.Path(file_okay=False), help="Where it is left; by default RUN/proof of the job."
)
@click.option("--jobs", "side_by_side", type=click.IntRange(1), help="Flows side by side.")
@click.option("--keep", is_flag=True, help="Keep what the flows left, checkpoints too.")
@quiet_option
@json_option
@click.pass_context
@usage_errors
def prove(
    ctx: click.Context,
    /,
    job: str,
    steps: int | None,
    cuts: tuple[int, ...],
    output: str | None,
    side_by_side: int | None,
    quiet: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Show that a resumed run is the run, and that the check would notice if it were not.

    JOB is run to some steps without a disturbance, and again cut: by a save and exit, by SIGKILL between
    saves, by a save on request and SIGKILL; each is resumed in a fresh process and compared to the last bit.
    Then each part of the state is left out of a restore in turn, which has to be noticed.
    """
    from outlast_supervisor.prove import report
    from outlast_supervisor.prove.progress import Progress
    from outlast_supervisor.prove.protocol import protocol_of, run_protocol
    from outlast_supervisor.prove.proving import Options, Prover

    asked = load_job(resolve_job(job), extra=rest_of(ctx))
    spare_adopted(asked, "a proof")
    if steps is not None and cuts and max(cuts) >= steps:
        raise click.UsageError(f"cannot cut after step {max(cuts)} of {steps}: cut before the last one", ctx)
    folder = Path(output) if output is not None else RunDirectory(Path(asked.run_dir)).proof
    options = Options(asked, folder, steps, cuts, side_by_side=side_by_side or _side_by_side(), **more)
    progress = Progress(quiet=quiet)
    exit_on_term()  # what was launched is ended, and the scratch folder removed
    protocol = None
    try:
        with contextlib.closing(progress):
            proof = Prover(options, progress).prove()
        script = protocol_of(asked)
        if script is not None and not options.only:
            progress.say("the job's own protocol begins")
            protocol = run_protocol(script, folder / "protocol")
            proof = dataclasses.replace(proof, whole=proof.whole.joined(protocol))
        report.write(folder, proof, protocol)
    except OSError as error:
        where = f' "{error.filename}"' if error.filename else ""
        raise Failed(f"cannot write the proof{where}: {error.strerror or error}", 73) from error
    if as_json:
        print_json(report.as_json(proof, protocol))
    elif not quiet or proof.whole.answer != Answer.HELD:
        print("\n".join(report.lines(proof)))
    return int(proof.whole.answer)


def _side_by_side() -> int:
    """Two where there are cores for it; one where flows would share a device's memory."""
    cores = len(os.sched_getaffinity(0))
    return 1 if Path("/dev/nvidia0").exists() else min(2, cores)
