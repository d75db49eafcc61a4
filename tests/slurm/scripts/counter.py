"""A trainer with nothing to train and no torch: it attaches, counts, seals each count as asked, and heeds signals.

Its state is one number and a digest over all steps, so that a step left out or done twice shows at the end. It
leaves `RUN.counted` beside the run directory: a line a step with the attempt and the host, appended. It is done
when `RUN.enough` is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
from pathlib import Path

from outlast_jobs.errors import Fenced
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.locks import hold_shared
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_worker.guardian import Guardian
from outlast_worker.notify import Notifier
from outlast_worker.signals import Signals

STATE = "state.json"


class Counter:
    """One attempt."""

    def __init__(self, every: int) -> None:
        self.run = RunDirectory(Path(os.environ["OUTLAST_RUN"]))
        self.attempt = int(os.environ["OUTLAST_ATTEMPT"])
        self.every = every
        self.step, self.digest = 0, ""
        self.sealed = -1
        self.notifier = Notifier.from_env()
        self.guardian = Guardian.from_env(self.notifier)
        self.signals = Signals()
        self._alive = hold_shared(self.run)

    def attach(self) -> None:
        said: dict[str, object] = {"READY": 1, "X_OUTLAST_PROTOCOL": 1, "X_OUTLAST_RANK": 0}
        if resume := os.environ.get("OUTLAST_RESUME"):
            state = json.loads(Path(resume, STATE).read_text())
            self.step, self.digest = state["step"], state["digest"]
            self.sealed = self.step
            said["X_OUTLAST_RESTORED"] = Path(resume).name
        said["X_OUTLAST_STEP"] = self.step
        self.signals.install()
        self.notifier.send(said, important=True)
        self.notifier.send({"X_OUTLAST_PHASE": "train"}, important=True)
        print(f"from step {self.step} on {socket.gethostname()}", flush=True)

    def count(self) -> None:
        self.step += 1
        self.digest = digest_after(self.digest, self.step)
        with open(f"{self.run.path}.counted", "a") as file:
            file.write(f"{self.step} {self.attempt} {socket.gethostname()}\n")
        self.notifier.send_often({"X_OUTLAST_STEP": self.step, "X_OUTLAST_PHASE": "train"})

    def boundary(self) -> None:
        """Save when due, asked or told to stop; end when told to."""
        stop = self.signals.stops or self.guardian.gone()
        if (stop or self.signals.save_requested or self.step % self.every == 0) and self.step > self.sealed:
            self.signals.answer_saves()
            self.seal(final=False)
        if stop:
            self.leave("saved", 75)

    def seal(self, *, final: bool) -> None:
        name = GenerationName(self.step, self.attempt, final and self.sealed == self.step)
        sealer = Sealer(self.run.checkpoints, self.attempt, name)
        begun = time.monotonic()
        try:
            sealer.begin()
            sealer.add(STATE, json.dumps({"step": self.step, "digest": self.digest}).encode())
            sealer.seal(
                Index(
                    run_id=os.environ["OUTLAST_RUN_ID"],
                    attempt=self.attempt,
                    step=self.step,
                    saved_at=time.time(),
                    healthy=True,
                    final=final,
                    state_sha256=hashlib.sha256(self.digest.encode()).hexdigest() if final else None,
                )
            )
        except Fenced as error:
            print(f"fenced: {error}", flush=True)
            self.leave("saved", 75)
        self.sealed = self.step
        said = {
            "X_OUTLAST_SEALED": name,
            "X_OUTLAST_STEP": self.step,
            "X_OUTLAST_BYTES": sealer.bytes_written,
        }
        self.notifier.send({**said, "X_OUTLAST_SECONDS": time.monotonic() - begun}, important=True)

    def leave(self, word: str, code: int) -> None:
        print(f"{word} at step {self.step}", flush=True)
        self.notifier.send({"X_OUTLAST_EXIT": word}, important=True)
        raise SystemExit(code)


def digest_after(before: str, step: int) -> str:
    return hashlib.sha256(f"{before} {step}".encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9, help="otherwise until RUN.enough is there")
    parser.add_argument("--seconds", type=float, default=0.02, help="of each step")
    parser.add_argument("--every", type=int, default=10**9, help="seal each multiple")
    parser.add_argument("--exit", type=int, default=0, help="leave with this code at step 5")
    parser.add_argument("--label", help="to be seen in the log")
    args = parser.parse_args()
    counter = Counter(args.every)
    counter.attach()
    enough = Path(f"{counter.run.path}.enough")
    while counter.step < args.steps and not enough.exists():
        time.sleep(args.seconds)
        if args.exit and counter.step == 5:
            raise SystemExit(args.exit)
        counter.count()
        counter.boundary()
    counter.seal(final=True)
    counter.leave("done", 0)


if __name__ == "__main__":
    main()
