"""A training of a few steps that holds what is promised, or breaks it in the way that its arguments name."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

from outlast_worker import Checkpointer

STRAY = "( trap '' TERM; exec sleep 300 ) &"


def slow(event: str, args: tuple[Any, ...]) -> None:
    """A disk that takes its time over a rename, where the training goes on meanwhile."""
    if event == "outlast.rename" and threading.current_thread() is not threading.main_thread():
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaf", action="store_true", help="a stop signal ends it, as if it had no handler")
    parser.add_argument("--reseed", action="store_true", help="a resumed run draws other random numbers")
    parser.add_argument(
        "--stray", action="store_true", help="leaves a process that nobody knows to be its own"
    )
    parser.add_argument(
        "--slow", action="store_true", help="a save takes longer than the steps to the next one"
    )
    args = parser.parse_args()
    if args.slow:
        sys.addaudithook(slow)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    ckpt = Checkpointer(model=model, optimizer=optimizer)
    with ckpt:
        if args.deaf:
            # as a C library would: what Python has set is taken back at the next boundary
            ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(int(signal.SIG_DFL)))
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
