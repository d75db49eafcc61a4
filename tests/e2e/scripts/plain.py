"""A training loop with nothing to train: quick to start, its steps take as long as they are told to.

What it does can be changed while it runs, through files in its working directory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch

from outlast_worker import Checkpointer


class Sum:
    """A part of the state: the sum over all steps. It does not load where the file `poison` names its step."""

    def __init__(self, ballast: int) -> None:
        self.step = self.total = 0
        self.ballast = torch.ones(ballast, dtype=torch.uint8)

    def add(self, step: int) -> None:
        self.step, self.total = step, self.total + step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "total": self.total, "ballast": self.ballast}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        poison = Path("poison")
        if poison.exists() and poison.read_text() in ("all", str(state["step"])):
            raise RuntimeError("this state does not load")
        self.step, self.total = state["step"], state["total"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", default="0.002", help="of each step; of several, one after the other")
    parser.add_argument("--fail-in", default="", help="the step in which attempt 1, 2, … raises")
    parser.add_argument("--nan-from", type=int, default=10**9, help="the loss is NaN from that step on")
    parser.add_argument("--digest-every", type=int, default=1)
    parser.add_argument("--ballast", type=int, default=0, help="bytes by which each save is larger")
    args = parser.parse_args()
    failing = dict(enumerate(map(int, filter(None, args.fail_in.split(","))), start=1))
    fail_in = failing.get(int(os.environ["OUTLAST_ATTEMPT"]))

    summed = Sum(args.ballast)
    ckpt = Checkpointer(model=None, summed=summed, digest_every=args.digest_every)
    with ckpt:
        back = time.monotonic()
        for seconds in itertools.cycle(map(float, args.seconds.split(","))):
            step = ckpt.step_count + 1
            if step > args.steps:
                break
            if step == fail_in:
                raise RuntimeError(f"step {step} fails")
            time.sleep(seconds)
            summed.add(step)
            loss = 1 / step if step < args.nan_from else float("nan")
            ckpt.step(loss=loss, step=step, mono=time.monotonic(), back=back)
            back = time.monotonic()
    print(f"the sum is {summed.total}", flush=True)
    if Path("export-fails").exists():
        Path("export-fails").unlink()
        raise OSError("no room for the export")
    Path("exported").write_text(str(summed.total))


if __name__ == "__main__":
    main()
