"""A proof run of a script that has no Checkpointer and only calls the save and load functions.

Its boundaries are its saves: there it is recorded, cut, and ended. A cut by SIGKILL comes before a file is
written, so that the steps since the last one are lost.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from outlast_jobs.contract import Env, ExitCode, Field
from outlast_jobs.rundir import RunDirectory
from outlast_worker.context import RunContext
from outlast_worker.fingerprint import code_identity, fingerprint
from outlast_worker.metrics import MetricsWriter
from outlast_worker.notify import Notifier
from outlast_worker.parts import Parts
from outlast_worker.proofing import Order, Proof, taken_by_checkpointer
from outlast_worker.rng import capture_rng_state


class Counted(Protocol):
    """What a script counts: a TrainState."""

    step: int
    epoch: int
    batch_in_epoch: int
    losses: list[float]
    extra: dict[str, Any]


def file_proof() -> FileProof | None:
    """The proof that this process is part of; None outside of one, or where a Checkpointer records it."""
    if not os.environ.get(Env.RECORD) or taken_by_checkpointer():
        return None
    return _of_process()


@functools.cache
def _of_process() -> FileProof | None:
    order, context = Order.from_env(), RunContext.from_env()
    return None if order is None or context is None else FileProof(order, context)


class FileProof:
    """Records a process that saves and loads files, and cuts it there."""

    def __init__(self, order: Order, context: RunContext) -> None:
        self._order, self._context = order, context
        self._notifier = Notifier.from_env()
        self._proof: Proof | None = None
        self._metrics: MetricsWriter | None = None

    def leave_out(self, tree: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tree with what a fresh start has in the place of the part that is to be left out."""
        changed = {key: dict(item) if isinstance(item, dict) else item for key, item in tree.items()}
        live = {"parts": Parts(named).capture()[0], "rng": capture_rng_state()}
        proof = self._for(named, {})
        proof.leave_out_extra(changed)
        proof.leave_out(changed, live)
        return changed

    def loaded(self, state: Counted, named: Mapping[str, Any], *, with_rng: bool) -> None:
        """Record what the training finds after a load. Streams that are restored later are not looked at."""
        proof = self._for(named, state.extra)
        rng = capture_rng_state()
        self._open(state.step, "a file")
        if self._metrics is not None:
            self._metrics.line(self._start(state.step, proof.boundary(rng), with_rng=with_rng))

    def saving(self, state: Counted, path: str | os.PathLike[str]) -> None:
        """Before a file is written: refuse one that other flows would share, or end here by SIGKILL."""
        run = self._context.run.resolve()
        if not Path(path).resolve().is_relative_to(run):
            raise RuntimeError(
                f"cannot prove a job that saves to {os.fspath(path)!r}: its flows would share the file; save "
                f"below the folder that {Env.RUN} names"
            )
        if any(number == signal.SIGKILL and state.step >= at for number, at in self._order.cuts):
            signal.raise_signal(signal.SIGKILL)

    def saved(self, state: Counted, named: Mapping[str, Any]) -> None:
        """After a file was written: record this boundary, and leave if the flow is to be cut or to end here."""
        blind = self._proof is None  # nothing has watched the optimizers so far
        record = self._for(named, state.extra).boundary(capture_rng_state())
        if blind:
            record["updates"] = None
        if self._metrics is None:
            self._open(0, None)
            self._line(self._start(0, {}, with_rng=False))
        loss = state.losses[-1] if state.losses else None
        counted = {"epoch": state.epoch, "batch": state.batch_in_epoch}
        self._line({"step": state.step, "loss": loss, "lr": record["lr"], **counted, "proof": record})
        self._notifier.send({Field.STEP: state.step})
        stops = [at for number, at in self._order.cuts if number.name == os.environ.get(Env.SIGNAL_STOP)]
        if any(state.step >= at for at in stops):
            raise SystemExit(int(ExitCode.SAVED))
        if self._order.stop_at is not None and state.step >= self._order.stop_at:
            raise SystemExit(0)

    # --- inside ---

    def _for(self, named: Mapping[str, Any], extra: Mapping[str, Any]) -> Proof:
        if self._proof is None:
            self._proof = Proof(self._order, named, extra, list)
        self._proof.look_at(named, extra)
        return self._proof

    def _open(self, step: int, restored: str | None) -> None:
        path = RunDirectory(self._context.run).attempt_metrics(self._context.attempt)
        self._metrics = MetricsWriter(path, self._context.attempt, step, restored)

    def _line(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.line(line)

    def _start(self, step: int, record: dict[str, Any], *, with_rng: bool) -> dict[str, Any]:
        what = {
            "fingerprint": fingerprint(),
            "code": code_identity(getattr(sys.modules.get("__main__"), "__file__", None)),
        }
        shown = record if with_rng else {key: item for key, item in record.items() if key != "places"}
        return {"start": step, "files": True, **what, "proof": shown}
