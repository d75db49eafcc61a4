"""A worker that speaks the protocol by hand, without torch: it counts, seals its count, and ends as it is told."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer

TOTAL, PAUSE = int(sys.argv[1]), float(sys.argv[2])
ATTEMPT = int(os.environ["OUTLAST_ATTEMPT"])
asked: set[int] = set()
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def tell(**fields: object) -> None:
    lines = [f"{name if name == 'READY' else 'X_OUTLAST_' + name}={value}" for name, value in fields.items()]
    channel.sendto("\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])


def save(step: int, *, final: bool = False) -> None:
    began = time.monotonic()
    sealer = Sealer(Path(os.environ["OUTLAST_CHECKPOINTS"]), ATTEMPT, GenerationName(step, ATTEMPT))
    sealer.begin()
    sealer.add("count", str(step).encode())
    run_id = os.environ["OUTLAST_RUN_ID"]
    sealer.seal(Index(run_id=run_id, attempt=ATTEMPT, step=step, healthy=True, final=final))
    tell(STEP=step, SEALED=sealer.name, BYTES=sealer.bytes_written, SECONDS=time.monotonic() - began)


def main() -> None:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.add(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    resume = os.environ.get("OUTLAST_RESUME")
    step = int(Path(resume, "count").read_text()) if resume else 0
    restored = {"RESTORED": Path(resume).name} if resume else {}
    tell(READY=1, PROTOCOL=1, STEP=step, PHASE="train", **restored)
    while step < TOTAL:
        time.sleep(PAUSE)
        step += 1
        tell(STEP=step, TOTAL=TOTAL, LOSS=1 / step)
        if signal.SIGTERM in asked:
            save(step)
            tell(EXIT="saved")
            sys.exit(75)
        if asked:
            asked.clear()
            save(step)
    save(step, final=True)
    tell(EXIT="done")


main()
