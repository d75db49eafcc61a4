"""A trainer without torch that seals real generations: it counts, saves, resumes, and speaks the protocol by hand.

python sealing.py STEPS EVERY SECONDS
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer

STEPS, EVERY, SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
ENV = os.environ
ATTEMPT = int(ENV["OUTLAST_ATTEMPT"])

asked: list[int] = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda n, frame: asked.append(n))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
channel.connect(ENV["NOTIFY_SOCKET"])


def tell(*lines: str) -> None:
    channel.send("\n".join(lines).encode())


def save(step: int, *, final: bool = False) -> bool:
    """Seal what was counted; False where the disk does not take it."""
    name = GenerationName(step, ATTEMPT)
    sealer = Sealer(Path(ENV["OUTLAST_CHECKPOINTS"]), ATTEMPT, name)
    try:
        sealer.begin()
        sealer.add("meta.pt", f"{step}\n".encode() * 100)
        index = Index(run_id=ENV["OUTLAST_RUN_ID"], attempt=ATTEMPT, step=step, healthy=True, final=final)
        sealer.seal(index)
    except OSError as error:
        sealer.abort()
        tell(f"X_OUTLAST_SAVE_FAILED={error.strerror}")
        return False
    tell(
        f"X_OUTLAST_SEALED={name}", f"X_OUTLAST_STEP={step}", "X_OUTLAST_BYTES=1000", "X_OUTLAST_SECONDS=0.01"
    )
    return True


begun = 0
ready = ["READY=1", "X_OUTLAST_PROTOCOL=1", "X_OUTLAST_RANK=0"]
if "OUTLAST_RESUME" in ENV:
    begun = int((Path(ENV["OUTLAST_RESUME"]) / "meta.pt").read_text().splitlines()[0])
    ready.append(f"X_OUTLAST_RESTORED={Path(ENV['OUTLAST_RESUME']).name}")
tell(*ready, f"X_OUTLAST_STEP={begun}")
print("begins after step", begun, flush=True)
with Path(ENV["OUTLAST_RUN"], "metrics", f"attempt-{ATTEMPT:04d}.jsonl").open("a") as metrics:
    for step in range(begun + 1, STEPS + 1):
        time.sleep(SECONDS)
        metrics.write(json.dumps({"step": step, "loss": 0.5, "t": time.time()}) + "\n")
        metrics.flush()
        tell(f"X_OUTLAST_STEP={step}")
        if signal.SIGTERM in asked:
            code = 75 if save(step) else 73
            tell("X_OUTLAST_EXIT=saved" if code == 75 else "STATUS=not saved")
            sys.exit(code)
        if (step % EVERY == 0 and step < STEPS) or signal.SIGUSR1 in asked:
            asked.clear()
            save(step)
if not save(STEPS, final=True):
    sys.exit(73)
tell("X_OUTLAST_EXIT=done", f"X_OUTLAST_STEP={STEPS}")
