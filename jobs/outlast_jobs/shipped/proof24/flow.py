"""One flow of the protocol, in this process and a folder of its own: begin or resume, train, save, tell all."""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from task import BATCH, ROWS, Done, Task, code_identity

from outlast_worker import TrainState, atomic_write_json, load_checkpoint, save_checkpoint
from outlast_worker.fingerprint import fingerprint

CHECKPOINT, SUMMARY = "checkpoint.pt", "summary.json"
SCHEMA = "proof24.summary/1"


class Refused(ValueError):
    """The checkpoint loads, but does not fit together: it is not of a run of this task."""


def main(argv: Sequence[str] | None = None) -> int:
    """0: done; 2: it could not be completed, and standard error says why."""
    args = _arguments(argv)
    output = Path(args.output)
    try:
        output.mkdir(parents=True)  # it must not exist yet: nothing of another flow is in it
        run(output, args.steps, args.resume, restore_rng=not args.without_rng)
    except FileExistsError:
        print(
            f"proof24: {str(output)!r} exists already; each flow needs a folder of its own", file=sys.stderr
        )
    except (OSError, ValueError, RuntimeError) as error:
        print(f"proof24: the flow could not be completed: {type(error).__name__}: {error}", file=sys.stderr)
    else:
        return 0
    return 2


def run(output: Path, steps: int, resume: str | None, *, restore_rng: bool) -> None:
    """Train ``steps`` additional steps, and leave a checkpoint and a summary."""
    task, state = Task(), TrainState()
    if resume is not None:
        state = load(task, Path(resume), restore_rng=restore_rng)
    began, done = state.step, list[Done]()
    for _ in range(steps):
        update = task.update()
        done.append(update)
        state.step += 1
        state.losses.append(update.loss)
        state.epoch, state.batch_in_epoch = task.rows.epoch, task.rows.cursor // BATCH
    written = save_checkpoint(
        task.model,
        task.optimizer,
        task.scheduler,
        state,
        output / CHECKPOINT,
        parts={"rows": task.rows, "noise": task.noise},
        code=code_identity(),
        data=task.data_identity(),
    )
    outputs, error = task.evaluate()
    summary = {
        "schema": SCHEMA,
        "flow": {
            "began_at": began,
            "steps": steps,
            "resumed": resume is not None,
            "rng_restored": restore_rng,
        },
        "progress": progress(task, state),
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "steps": [
            {"step": began + n, "ids": update.ids, "lr": update.lr, "loss": update.loss}
            for n, update in enumerate(done, 1)
        ],
        "next_lr": task.lr,
        "evaluation": {"outputs": outputs, "mse": error},
        "next_draws": next_draws(task),
        "checkpoint": {"file": CHECKPOINT, "bytes": written.bytes, "sha256": written.sha256},
        "environment": fingerprint(),
    }
    atomic_write_json(_writable(summary), output / SUMMARY)


def load(task: Task, path: Path, *, restore_rng: bool) -> TrainState:
    """Restore a checkpoint of this code, these data and this environment, or refuse; never a part of it.

    Without ``restore_rng`` every random stream, the private one too, goes on as in a process that began anew.
    """
    untouched = task.noise.bit_generator.state
    state = load_checkpoint(
        path,
        task.model,
        task.optimizer,
        task.scheduler,
        parts={"rows": task.rows, "noise": task.noise},
        code=code_identity(),
        data=task.data_identity(),
        identity="strict",
        restore_rng=restore_rng,
    )
    _check_progress(task, state)
    if not restore_rng:
        task.noise.bit_generator.state = untouched
    return state


def progress(task: Task, state: TrainState) -> dict[str, Any]:
    """Where the run stands, in every way in which it is counted."""
    return {
        "step": state.step,
        "epoch": state.epoch,
        "batch_in_epoch": state.batch_in_epoch,
        "consumed": task.rows.epoch * ROWS + task.rows.cursor,
        "rows": task.rows.state_dict(),
        "scheduler_steps": task.scheduler.last_epoch,
    }


def next_draws(task: Task) -> dict[str, Any]:
    """What each stream would give next, looked at in copies: the streams stay where they are."""
    python = random.Random()
    python.setstate(random.getstate())
    legacy = np.random.RandomState()
    legacy.set_state(np.random.get_state())
    of_torch = torch.Generator()
    of_torch.set_state(torch.get_rng_state())
    return {
        "python": [python.random() for _ in range(3)],
        "numpy": legacy.random_sample(3).tolist(),
        "torch": torch.rand(3, generator=of_torch, dtype=torch.float64).tolist(),
        "noise": copy.deepcopy(task.noise).normal(size=3).tolist(),
    }


def _check_progress(task: Task, state: TrainState) -> None:
    """All that counts must tell of the same step."""
    rows = task.rows
    moments = {int(entry["step"]) for entry in task.optimizer.state.values()}
    counted = {
        "the rows": (rows.epoch * ROWS + rows.cursor) // BATCH,
        "the scheduler": task.scheduler.last_epoch,
        "the optimizer": moments.pop() if len(moments) == 1 else None,
        "the losses": len(state.losses),
        "the epoch": (state.epoch * ROWS) // BATCH + state.batch_in_epoch,
    }
    for what, step in counted.items():
        if step != state.step:
            raise Refused(f"the checkpoint is of step {state.step}, but {what} of it tell of step {step}")


def _writable(value: Any) -> Any:
    """JSON has no NaN and no infinities; as text they stay, and the comparison reports them."""
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if isinstance(value, list | tuple) else value


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one flow of the protocol")
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="a folder that does not exist yet")
    add("--steps", type=int, required=True, help="additional steps")
    add("--resume", metavar="FILE", help="the checkpoint to go on from")
    add("--without-rng", action="store_true", help="leave the restore of all random streams out")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
