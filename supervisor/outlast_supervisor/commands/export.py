"""`outlast export`: the newest healthy generation with all it takes to load it, checked by loading it."""

from __future__ import annotations

import sys
from typing import Any

import click

from outlast_jobs.units import format_size
from outlast_supervisor.commands.shared import (
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.targets import find_run

EXPORT_CODES = """\b
Exit codes:
  0    exported, loaded and compared
  2    no Python at hand could load it; nothing was exported
  64   bad usage, or no such run
  65   no usable checkpoint, or the copy does not load as it should
  73   DEST cannot be written
"""


@click.command(epilog=EXPORT_CODES)
@click.argument("run")
@click.argument("dest")
@click.option("--generation", metavar="NAME", help="This one, healthy or not; else the newest healthy one.")
@click.option(
    "--python", metavar="PATH", help="The Python to load it with; else the job's, or that of outlast."
)
@quiet_option
@json_option
@usage_errors
def export(
    run: str, dest: str, generation: str | None, python: str | None, quiet: bool, as_json: bool
) -> None:
    """Copy the newest healthy generation to the new folder DEST, with all it takes to load it.

    The copy is loaded by its own load.py, which needs nothing but torch, and by outlast; it appears at DEST when
    both agree. The run is only read, and may go on.
    """
    from outlast_supervisor.answering import answering
    from outlast_supervisor.export import checking, exporting, place

    with answering(f'"{run}"'):
        found = find_run(run)
    passed: list[dict[str, str]] = []

    show = sys.stderr.isatty() and not quiet

    def clear() -> None:
        if show:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def tell(text: str) -> None:
        clear()
        if not quiet:
            say(f"outlast: {text}")

    def passed_over(name: str, why: str) -> None:
        passed.append({"generation": name, "reason": why})
        tell(f"passed over {name}: {why}")

    def doing(text: str) -> None:
        if show:
            print(f"\r\x1b[2K{text} …", end="", file=sys.stderr, flush=True)

    try:
        done = exporting.export(
            found,
            place.target_of(dest, found),
            checking.pythons(run, found, python),
            generation=generation,
            voice=exporting.Voice(tell, passed_over, doing),
        )
    finally:
        clear()
    if as_json:
        print_json({**_plain(done), "passed_over": passed})
    elif not quiet:
        size, tensors = format_size(done.index.total_bytes), done.found["tensors"]
        print(f"{dest}: step {done.index.step}, {size}, loaded and compared: {tensors} tensors, equal")


def _plain(done: Any) -> dict[str, Any]:
    index, found = done.index, done.found
    return {
        "path": str(done.path),
        "generation": done.generation,
        "run_id": index.run_id,
        "step": index.step,
        "attempt": index.attempt,
        "loss": found["loss"],
        "healthy": index.healthy,
        "final": index.final,
        "bytes": index.total_bytes,
        "saved_at": index.saved_at,
        "parts": {name: {"tensors": count, "values": size} for name, (count, size) in found["parts"].items()},
        "tensors": found["tensors"],
        "state_sha256": found["library"],
        "loaded_by": {"python": found["python"], "torch": found["torch"]},
    }
