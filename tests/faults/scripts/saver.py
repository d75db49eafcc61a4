"""A trainer without torch that does little else than to save: the product's own seals, metrics, messages, signals.

Its state is one number and a digest over all steps. It tells beside the disk what it resumed from, and each seal as
soon as the function that seals has returned. It is done when the file `ENOUGH` is there. With `--without-fsync` the
content of its files is left to the system.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

from tell import tell

from outlast_jobs.blocks import Image
from outlast_jobs.direct import DIRECT_FROM
from outlast_jobs.errors import Fenced
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.locks import hold_shared
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_worker.guardian import Guardian
from outlast_worker.metrics import MetricsWriter
from outlast_worker.notify import Notifier
from outlast_worker.signals import Signals

EVERY = 3
STEP_SECONDS = 0.004


class Shard(Image):
    """Large enough to be written past the page cache, all but its odd end."""

    size = DIRECT_FROM + 777

    def __init__(self, digest: str) -> None:
        self._content = (digest.encode() * (self.size // len(digest) + 1))[: self.size]

    def block(self, start: int, scratch: memoryview) -> memoryview:
        scratch[:] = self._content[start : start + scratch.nbytes]
        return scratch


class Saver:
    """One attempt."""

    def __init__(self) -> None:
        self.run = RunDirectory(Path(os.environ["OUTLAST_RUN"]))
        self.attempt = int(os.environ["OUTLAST_ATTEMPT"])
        self.step, self.digest, self.sealed = 0, "", -1
        self.notifier = Notifier.from_env()
        self.guardian = Guardian.from_env(self.notifier)
        self.signals = Signals()
        self._alive = hold_shared(self.run)

    def attach(self) -> None:
        said: dict[str, object] = {"READY": 1, "X_OUTLAST_PROTOCOL": 1, "X_OUTLAST_RANK": 0}
        resume = os.environ.get("OUTLAST_RESUME")
        name = Path(resume).name if resume else None
        if resume:
            state = json.loads(Path(resume, "state.json").read_text())
            self.step, self.digest, self.sealed = state["step"], state["digest"], state["step"]
            said["X_OUTLAST_RESTORED"] = name
        tell("started", attempt=self.attempt, resumed=name, host=os.uname().nodename)
        self.metrics = MetricsWriter(self.run.attempt_metrics(self.attempt), self.attempt, self.step, name)
        self.signals.install()
        self.notifier.send({**said, "X_OUTLAST_STEP": self.step}, important=True)

    def train(self) -> None:
        time.sleep(STEP_SECONDS)
        self.step += 1
        self.digest = hashlib.sha256(f"{self.digest} {self.step}".encode()).hexdigest()
        self.metrics.line({"step": self.step, "loss": 1.0 / self.step, "lr": [0.1], "t": time.time()})
        self.notifier.send_often({"X_OUTLAST_STEP": self.step, "X_OUTLAST_PHASE": "train"})

    def boundary(self) -> None:
        """Save when due, asked or told to stop; end when told to."""
        stop = self.signals.stops or self.guardian.gone()
        if (stop or self.signals.save_requested or self.step % EVERY == 0) and self.step > self.sealed:
            self.signals.answer_saves()
            self.save()
        if stop:
            self.leave("saved", 75)

    def save(self, *, final: bool = False) -> None:
        name = GenerationName(self.step, self.attempt, final and self.sealed == self.step)
        begun = time.monotonic()
        self.metrics.sync()
        try:
            size = self._seal(name, final)
        except Fenced as error:
            print(f"fenced: {error}", flush=True)
            self.leave("saved", 75)
        except OSError as error:
            self.notifier.send({"X_OUTLAST_SAVE_FAILED": error.strerror}, important=True)
            return
        tell("sealed", name=str(name))
        self.sealed = self.step
        said: dict[str, object] = {
            "X_OUTLAST_SEALED": name,
            "X_OUTLAST_STEP": self.step,
            "X_OUTLAST_BYTES": size,
        }
        self.notifier.send({**said, "X_OUTLAST_SECONDS": time.monotonic() - begun}, important=True)

    def _seal(self, name: GenerationName, final: bool) -> int:
        sealer = Sealer(self.run.checkpoints, self.attempt, name)
        sealer.begin()
        try:
            sealer.add("state.json", json.dumps({"step": self.step, "digest": self.digest}).encode())
            sealer.add("model.shard-000.pt", self.digest.encode() * 300)
            sealer.add("optimizer.shard-000.pt", Shard(self.digest))
            index: dict[str, Any] = {"run_id": os.environ["OUTLAST_RUN_ID"], "saved_at": time.time()}
            sealer.seal(
                Index(
                    **index,
                    attempt=self.attempt,
                    step=self.step,
                    healthy=True,
                    final=final,
                    state_sha256=self.digest if final else None,
                )
            )
        except BaseException:
            sealer.abort()
            raise
        return sealer.bytes_written

    def leave(self, word: str, code: int) -> None:
        self.notifier.send({"X_OUTLAST_EXIT": word}, important=True)
        raise SystemExit(code)


def leave_files_to_the_system() -> None:
    fsync = os.fsync

    def of_folders_alone(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            fsync(fd)

    os.fsync = of_folders_alone  # type: ignore[assignment]


def main() -> None:
    if "--without-fsync" in sys.argv:
        leave_files_to_the_system()
    saver = Saver()
    saver.attach()
    enough = False
    while not enough:
        saver.train()
        saver.boundary()
        enough = os.path.exists(os.environ["ENOUGH"])
    saver.save(final=True)
    saver.leave("done", 0)


if __name__ == "__main__":
    main()
