"""The training of the protocol as an ordinary job: `outlast run proof24`, or `python train.py` by itself."""

from __future__ import annotations

import argparse

from task import STEPS, Task

from outlast_worker import Checkpointer


def main() -> None:
    """Everything that lasts is made first; the checkpointer restores it, then the loop runs."""
    parser = argparse.ArgumentParser(description="train a network of 33 parameters on 24 rows")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer updates (%(default)s)")
    args = parser.parse_args()
    task = Task()
    ckpt = Checkpointer(
        model=task.model,
        optimizer=task.optimizer,
        scheduler=task.scheduler,
        rows=task.rows,
        noise=task.noise,
    )
    with ckpt:  # restores the checkpoint that the supervisor chose, if there is one
        while ckpt.step_count < args.steps:
            done = task.update()
            print(
                f"step {ckpt.step_count + 1}: rows {done.ids}, rate {done.lr}, loss {done.loss!r}", flush=True
            )
            ckpt.step(loss=done.loss)
        print(f"mean squared error {task.evaluate()[1]!r}, next rate {task.lr}", flush=True)


if __name__ == "__main__":
    main()
