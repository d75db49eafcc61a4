"""The demonstration: a run cut in mid-epoch and resumed in another process has the losses of one never cut."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import torch

from outlast_jobs.contract import Answer
from outlast_worker.atomic import atomic_write_json
from outlast_worker.demo_training import Setup, Training
from outlast_worker.folder import CheckpointFolder, Keep
from outlast_worker.rng import capture_rng_state, restore_rng_state
from outlast_worker.sharding import Strategy

TOLERANCE = 1e-4
REPORT = "resume-demo.json"

_DEFAULTS = Setup()


class DemoFailed(RuntimeError):
    """The second process could not finish, so that there is nothing to compare."""


def run_resume_demo(
    *,
    total_steps: int = _DEFAULTS.total_steps,
    interrupt_at: int = 12,
    ckpt_dir: str | os.PathLike[str],
    sharded: bool = False,
    num_shards: int = 3,
    strategy: Strategy = "round_robin",
    seed: int = _DEFAULTS.seed,
    every_steps: int | None = None,
    every_seconds: float | None = None,
    keep_last: int = 3,
) -> dict[str, Any]:
    """Train to the end without a stop; train to ``interrupt_at`` and save; resume that in a fresh process.

    What is returned, and written to ``ckpt_dir``/resume-demo.json, has ``max_loss_diff_after_resume``, the
    largest difference of a loss after the cut, expected to be 0, and ``passed``: it is at most 1e-4. The random
    streams of the calling process are left as they were.
    """
    if not 0 < interrupt_at < total_steps:
        raise ValueError(f"cannot cut at step {interrupt_at}: give one between 0 and {total_steps}")
    setup = Setup(total_steps=total_steps, seed=seed)
    by_size: Strategy | None = strategy if sharded else None
    counted = num_shards if strategy in ("round_robin", "size") else None
    folder = CheckpointFolder(
        ckpt_dir,
        every_steps=every_steps,
        every_seconds=every_seconds,
        keep=Keep(last=keep_last),
        strategy=by_size,
        num_shards=counted,
    )
    with _undisturbed():
        whole = Training(setup)
        whole.train(total_steps)
        cut = Training(setup)
        cut.train(interrupt_at, lambda: cut.save(folder) if folder.due(cut.state.step) else None)
        saved = cut.save(folder)
    resumed = _resume_elsewhere(folder.path, setup)
    expected = whole.state.losses[interrupt_at:]
    largest = _largest_difference(expected, resumed["losses"])
    result = {
        "mode": f"sharded, {strategy}" if sharded else "single file",
        "total_steps": total_steps,
        "interrupt_at": interrupt_at,
        "epoch": cut.state.epoch,
        "batch_in_epoch": cut.state.batch_in_epoch,
        "seed": seed,
        "resumed_at": resumed["resumed_at"],
        "checkpoint": saved.name,
        "kept": [path.name for path in folder.checkpoints()],
        "losses_after_cut": expected,
        "losses_resumed": resumed["losses"],
        "max_loss_diff_after_resume": largest,
        "tolerance": TOLERANCE,
        "passed": resumed["resumed_at"] == interrupt_at and largest is not None and largest <= TOLERANCE,
    }
    atomic_write_json(result, folder.path / REPORT)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Single file and sharded, one after the other; the exit code says whether both held."""
    args = _arguments(argv)
    torch.set_num_threads(1)
    output = Path(args.output)
    results = []
    try:
        for sharded in (False, True):
            result = run_resume_demo(
                total_steps=args.steps,
                interrupt_at=args.cut,
                ckpt_dir=output / ("sharded" if sharded else "single"),
                sharded=sharded,
                num_shards=args.shards,
                strategy=args.strategy,
                seed=args.seed,
                every_steps=args.ckpt_every_steps,
                every_seconds=args.ckpt_every_seconds,
                keep_last=args.keep_last,
            )
            results.append(result)
            if not args.json:
                print(_line(result), flush=True)
        passed = all(result["passed"] for result in results)
        report = {"passed": passed, "demos": results}
        atomic_write_json(report, output / REPORT)
    except OSError as error:
        what = f'cannot write in "{output}": {error.strerror or error}; name another place with --output'
        print(f"outlast: the demonstration could not be completed: {what}", file=sys.stderr)
        return Answer.UNDECIDED
    except (DemoFailed, ValueError) as error:
        print(f"outlast: the demonstration could not be completed: {error}", file=sys.stderr)
        return Answer.UNDECIDED
    if args.json:
        print(msgspec.json.encode(report).decode())
    else:
        print(f"{'held' if passed else 'DID NOT HOLD'}; written to {output / REPORT}")
    return Answer.HELD if passed else Answer.DID_NOT_HOLD


def _line(result: dict[str, Any]) -> str:
    where = f"epoch {result['epoch']}, batch {result['batch_in_epoch']}"
    return (
        f"{result['mode']:<22} cut at step {result['interrupt_at']} ({where}) of {result['total_steps']}, "
        f"resumed in a fresh process: largest loss difference {result['max_loss_diff_after_resume']!r}"
    )


def _largest_difference(expected: Sequence[float], found: Sequence[float]) -> float | None:
    """None where they can't be told to be near: another number of them, or one that is not finite."""
    differences = [
        abs(a - b) if a is not None and b is not None else math.nan
        for a, b in zip_longest(expected, found, fillvalue=None)
    ]
    return None if any(not math.isfinite(d) for d in differences) else max(differences, default=0.0)


def _resume_elsewhere(folder: Path, setup: Setup) -> dict[str, Any]:
    command = [sys.executable, "-m", "outlast_worker.demo_training", str(folder), setup.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DemoFailed(f"the second process ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The caller's random streams and threads are its own again afterwards."""
    streams, threads = capture_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # as in the second process: threads decide the order of additions
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        restore_rng_state(streams)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m outlast_worker.demo",
        description="cut a small training in mid-epoch, resume it in another process, compare the losses",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--output", default="outlast-demo", metavar="DIR", help="where checkpoints and the report go")
    add("--steps", type=int, default=_DEFAULTS.total_steps, help="steps of the whole run")
    add("--cut", type=int, default=12, help="step after which it is cut")
    add("--seed", type=int, default=_DEFAULTS.seed, help="seed of everything")
    add("--shards", type=int, default=3, help="shards of the sharded checkpoint")
    add("--strategy", choices=("round_robin", "suffix", "groups", "size"), default="round_robin", help="how")
    add("--ckpt-every-steps", type=int, metavar="N", help="also save every N steps")
    add("--ckpt-every-seconds", type=float, metavar="S", help="also save every S seconds")
    add("--keep-last", type=int, default=3, metavar="K", help="checkpoints kept")
    add("--json", action="store_true", help="print the report as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
