"""A whole training run in one file: saved so that no kill leaves nothing valid, and loaded or refused."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast_jobs.durable import Written
from outlast_jobs.sidecar import publish, read_checked
from outlast_worker import trainstate
from outlast_worker.atomic import deserialized, serialized
from outlast_worker.fingerprint import fingerprint, other_torch
from outlast_worker.migrate import V2, to_current
from outlast_worker.proof_files import file_proof
from outlast_worker.ptfile import require_safe_loader
from outlast_worker.sameness import Identity, check_identity
from outlast_worker.saving import check_state
from outlast_worker.trainstate import TrainState
from outlast_worker.typewalk import loadable


def save_checkpoint(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    state: TrainState,
    path: str | os.PathLike[str],
    *,
    parts: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Written:
    """Save everything that a run needs to go on, the process-wide random streams included, as one file.

    Call it between two updates. ``path`` and ``path.sha256`` beside it are replaced in an order in which a
    kill at any moment leaves the old checkpoint or the new one, valid. ``parts`` are further things with a
    state: an EMA, a second optimizer, a private generator. ``code`` and ``data`` tell one version of them
    from another, in plain values; see load_checkpoint.
    """
    proof = file_proof()  # None but under `outlast prove`
    if proof is not None:
        proof.saving(state, path)
    tree = trainstate.gather(model, optimizer, scheduler, state, parts)
    payload = {
        **check_state(tree),
        "schema": V2,
        "fingerprint": fingerprint(),
        "code": loadable(dict(code or {}), "code"),
        "data": loadable(dict(data or {}), "data"),
        "saved_at": time.time(),
    }
    with serialized(payload) as chunks:
        written = publish(Path(path), chunks)
    if proof is not None:
        proof.saved(state, trainstate.named_parts(model, optimizer, scheduler, parts))
    return written


def load_checkpoint(
    path: str | os.PathLike[str],
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    *,
    parts: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    identity: Identity = "warn",
    restore_rng: bool = True,
    allow_rng_loss: bool = False,
    require_digest: bool = True,
) -> TrainState:
    """Bring everything to the state in a checkpoint, or refuse. Make all of it first, the scheduler too.

    The random streams are restored last. What draws outside the training, as the making of a loader's
    iterator does, must come before this call; or pass ``restore_rng=False`` and give ``state.rng`` to
    restore_rng_state right before the first batch.

    An IntegrityError: the file is not the one that was written, or of an unknown schema, or only running code
    could load it; ``code`` or ``data`` are given and not those recorded; ``identity`` is "strict" and the
    environment another one, which else is a warning. A PartError: the file has a part and the call has not,
    or the other way round, or other names, shapes or types. FileNotFoundError: there is no checkpoint.
    """
    payload = read_checkpoint(path, require_digest=require_digest)
    name = os.path.basename(os.fspath(path))
    check_identity(payload, code=code, data=data, identity=identity, name=name)
    return trainstate.restore(
        payload,
        model,
        optimizer,
        scheduler,
        parts,
        other_torch=other_torch(payload["fingerprint"]),
        restore_rng=restore_rng,
        allow_rng_loss=allow_rng_loss,
    )


def read_checkpoint(path: str | os.PathLike[str], *, require_digest: bool = True) -> dict[str, Any]:
    """What a checkpoint holds, verified and in the newest schema, with nothing restored from it."""
    require_safe_loader()
    data = read_checked(Path(path), require_digest=require_digest)
    name = os.path.basename(os.fspath(path))
    return to_current(deserialized(data, name), name)
