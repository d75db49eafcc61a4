"""A trainer of a few milliseconds: it speaks the protocol by hand, counts steps, and writes what it saved to a file."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

asked: list[int] = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda n, frame: asked.append(n))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})

channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
channel.connect(os.environ["NOTIFY_SOCKET"])


def tell(*lines: str) -> None:
    channel.send("\n".join(lines).encode())


def save(step: int, why: str) -> None:
    with open("saved", "a") as file:
        file.write(f"{why} {step} {time.time()}\n")


tell("READY=1", "X_OUTLAST_PROTOCOL=1", "X_OUTLAST_RANK=0", "X_OUTLAST_STEP=0")
total = int(sys.argv[1])
for step in range(1, total + 1):
    time.sleep(0.02)
    tell(f"X_OUTLAST_STEP={step}")
    if signal.SIGTERM in asked:
        save(step, "stop")
        tell("X_OUTLAST_EXIT=saved")
        sys.exit(75)
    if signal.SIGUSR1 in asked:
        asked.clear()
        save(step, "save")
tell("X_OUTLAST_EXIT=done")
