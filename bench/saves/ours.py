"""How outlast saves: under its supervisor, asked by the signals that a cluster sends."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from contender import LOOK, Contender, done

PATIENCE = 300.0  # seconds


class Outlast(Contender):
    """A save that the training does not wait for: asked for by SIGUSR1, as any is of a run that is under way.

    The first of an attempt is loaded back, and the next ones are compared with what they were copied from.
    """

    warm = 6

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        from outlast_worker import Checkpointer

        self.ckpt = Checkpointer(model=self.model, optimizer=self.optimizer)
        self.ckpt.__enter__()
        self.checkpoints = Path(os.environ["OUTLAST_RUN"]) / "checkpoints"
        self.known: set[str] = set()

    def boundary(self) -> None:
        self.ckpt.step()

    def tidy(self, step: int) -> None:
        self.known = set(os.listdir(self.checkpoints))  # its supervisor removes what is old, at any time

    def sealed(self) -> bool:
        """Whether there is a generation more, under its final name."""
        return any(name.startswith("step-") for name in set(os.listdir(self.checkpoints)) - self.known)

    def save(self, step: int) -> Future[None]:
        os.kill(os.getpid(), signal.SIGUSR1)
        self.ckpt.step()

        def wait() -> None:
            until = time.monotonic() + PATIENCE
            while not self.sealed():
                if time.monotonic() > until:
                    raise TimeoutError(f"no generation in {PATIENCE:g} s")
                time.sleep(LOOK)  # so fine is the figure: it is the time at which a seal was seen
            descriptor = os.open(self.checkpoints, os.O_RDONLY)
            os.fsync(descriptor)  # or the name might not last
            os.close(descriptor)

        return self.pool.submit(wait)

    def processes(self) -> list[int]:
        return [os.getppid(), *super().processes()]

    def close(self) -> None:
        self.ckpt.__exit__(None, None, None)  # the last generation, and the word that the run is done
        super().close()


class OutlastCompared(Outlast):
    """Those of an attempt that are compared: the first ones but the very first, and one in fifty."""

    warm = 1


class OutlastBlocking(Outlast):
    """The save after SIGTERM, with which the training ends: nothing is left to go on meanwhile."""

    warm = 1
    leaves = True

    def save(self, step: int) -> Future[None]:
        if step < self.warm:
            return super().save(step)
        os.kill(os.getppid(), signal.SIGTERM)  # or the supervisor would start the training again
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            self.ckpt.step()
        except SystemExit:
            if self.sealed():
                return done()
        raise RuntimeError("SIGTERM brought no save")
