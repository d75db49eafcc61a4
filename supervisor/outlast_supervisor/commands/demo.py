"""`outlast demo`: a training cut and resumed before one's eyes; it runs in a process of its own, with torch."""

from __future__ import annotations

import subprocess
import sys

import click

_CODES = """\b
Exit codes:
  0    the resumed run had the losses of the run that was never cut
  1    it had not
  2    it could not be completed
  64   bad usage
"""


@click.command(epilog=_CODES)
@click.option(
    "--output",
    default="outlast-demo",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where checkpoints and resume-demo.json go.",
)
@click.option(
    "--steps", default=30, show_default=True, type=click.IntRange(2), help="Steps of the whole run."
)
@click.option(
    "--cut", default=12, show_default=True, type=click.IntRange(1), help="Step after which it is cut."
)
@click.option("--seed", default=11, show_default=True, help="Seed of everything.")
@click.option("--shards", default=3, show_default=True, type=click.IntRange(1), help="Shards, where sharded.")
@click.option(
    "--strategy",
    default="round_robin",
    show_default=True,
    type=click.Choice(["round_robin", "suffix", "groups", "size"]),
    help="Which tensor goes into which shard.",
)
@click.option("--ckpt-every-steps", type=click.IntRange(1), metavar="N", help="Also save every N steps.")
@click.option(
    "--ckpt-every-seconds", type=click.FloatRange(0), metavar="S", help="Also save every S seconds."
)
@click.option(
    "--keep-last", default=3, show_default=True, type=click.IntRange(1), metavar="K", help="Checkpoints kept."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def demo(as_json: bool, **options: object) -> int:
    """Cut a small training in mid-epoch, resume it in a fresh process, and compare the losses.

    Once with a single file and once with shards, by the functions that any script can use (docs/recipe.md).
    """
    words = ["--json"] if as_json else []
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    # By name, not imported: nothing of the supervisor ever loads torch.
    done = subprocess.run([sys.executable, "-m", "outlast_worker.demo", *words], check=False)
    return done.returncode if done.returncode in (0, 1, 64) else 2
