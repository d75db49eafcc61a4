"""What can be made to go wrong in the toy run, each fault by a switch of its own."""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import time

# Here, since a typo is met while modules are imported: before torch is, and long before anything attaches.
if "--fail-import" in sys.argv:
    raise ImportError("this import fails: --fail-import")


def add_switches(parser: argparse.ArgumentParser) -> None:
    """Add the faults to the help, in a part of their own."""
    group = parser.add_argument_group("faults", "each is off unless asked for; steps count over all attempts")
    add = group.add_argument
    add("--fault-attempts", type=int, metavar="N", help="have the faults below in the first N attempts only")
    add("--raise-at", type=int, metavar="STEP", help="raise an error in that step whenever it is reached")
    add("--raise-random", type=float, metavar="P", help="raise an error in each step with this probability")
    add("--nan-from", type=int, metavar="STEP", help="the loss, and so the model, is NaN from that step on")
    add("--hang-at", type=int, metavar="STEP", help="never finish that step")
    add(
        "--hang-how",
        choices=sorted(HANGS),
        default="sleep",
        help="asleep, spinning, or in C with the GIL held",
    )
    add("--ignore-term", action="store_true", help="ignore SIGTERM once training begins")
    add("--grandchild", action="store_true", help="start a daemon, in a session of its own, that outlives us")
    add("--deaf-eval", action="store_true", help="answer no signal during an evaluation")
    add("--forget-step", action="store_true", help="count from step 1 after a restore too")
    add("--fail-import", action="store_true", help="die while modules are imported, in every attempt")


class Faults:
    """The faults that were asked for, asked whether they are due."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        attempt = int(os.environ.get("OUTLAST_ATTEMPT", "1"))
        self.on = args.fault_attempts is None or attempt <= args.fault_attempts

    def begin(self) -> None:
        """Once training begins: what lasts for the whole attempt."""
        if self.on and self.args.ignore_term:
            # as a C library would: what Python has set is taken back at the next boundary
            ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(int(signal.SIG_IGN)))
        if self.on and self.args.grandchild:
            print(f"grandchild {start_daemon()}", flush=True)

    def strike(self, step: int) -> None:
        """In a step, before its update: fail or hang if that is due."""
        if not self.on:
            return
        if step == self.args.hang_at:
            print(f"hanging in step {step}: {self.args.hang_how}", flush=True)
            HANGS[self.args.hang_how]()
        if step == self.args.raise_at:
            raise RuntimeError(f"step {step} fails: --raise-at")
        # Randomness of the system's: with a seeded draw the same step would fail each time.
        if self.args.raise_random and random.SystemRandom().random() < self.args.raise_random:
            raise RuntimeError("this step fails: --raise-random")

    def spoils(self, step: int) -> bool:
        """Whether the loss of this step is to be NaN."""
        return self.on and self.args.nan_from is not None and step >= self.args.nan_from

    def claimed(self, step: int, first: int) -> int:
        """The number that the script gives a step: the right one, or counted anew from its first step."""
        return step - first + 1 if self.on and self.args.forget_step else step

    @property
    def deaf(self) -> bool:
        """Whether an evaluation answers no signal."""
        return bool(self.on and self.args.deaf_eval)


def hang_asleep() -> None:
    """Wait for what never comes. Signal handlers run, and change nothing."""
    while True:
        time.sleep(3600)


def hang_spinning() -> None:
    """Work on nothing for ever. Signal handlers run, and change nothing."""
    while True:
        pass


def hang_holding_gil() -> None:
    """Wait in C for a lock that is ours already: no signal ends it, and no thread and no handler runs."""
    lock = ctypes.create_string_buffer(256)  # all zeros are a plain mutex, in every libc of Linux
    libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the GIL
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)


HANGS = {"sleep": hang_asleep, "spin": hang_spinning, "gil": hang_holding_gil}


def start_daemon() -> int:
    """A sleeper that has lost its parent and has a session of its own; its process id."""
    command = 'setsid sleep 600 </dev/null >/dev/null 2>&1 & echo "$!"'
    return int(subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.PIPE).stdout)
