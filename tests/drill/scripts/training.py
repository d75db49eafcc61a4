"""A training of a few steps that holds what is promised, or breaks it in the way that its arguments name."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time

import torch
from torch import nn

from outlast_worker import Checkpointer

STRAY = "( trap '' TERM; exec sleep 300 ) &"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaf", action="store_true", help="a stop signal ends it, as if it had no handler")
    parser.add_argument("--reseed", action="store_true", help="a resumed run draws other random numbers")
    parser.add_argument(
        "--stray", action="store_true", help="leaves a process that nobody knows to be its own"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ckpt = Checkpointer(model=model, optimizer=optimizer)
    with ckpt:
        if args.deaf:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if args.stray:
            subprocess.run(["sh", "-c", STRAY], env={"PATH": os.defpath}, start_new_session=True, check=True)
        first = True
        while ckpt.step_count < 60:
            if first and args.reseed and ckpt.step_count:
                torch.manual_seed(ckpt.step_count)
            first = False
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(0.01)
            ckpt.step(loss=loss)
            if ckpt.step_count % 8 == 0:
                with ckpt.phase("eval"):
                    ckpt.poll()


if __name__ == "__main__":
    main()
