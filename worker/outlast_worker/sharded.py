"""A whole training run in a folder of shards under one index: saved at once or not at all, loaded or refused."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from outlast_jobs import durable
from outlast_jobs.errors import AlreadySealed
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    META,
    FileEntry,
    GenerationName,
    Index,
    digest_line,
    encode_index,
)
from outlast_jobs.leftovers import clear_beside
from outlast_jobs.sidecar import make_folder, temporary_name
from outlast_worker import trainstate
from outlast_worker.fingerprint import fingerprint, other_torch
from outlast_worker.proof_files import file_proof
from outlast_worker.ptfile import require_safe_loader, stream
from outlast_worker.recorded import recorded
from outlast_worker.restoring import read_generation
from outlast_worker.sameness import Identity, check_identity
from outlast_worker.saving import INLINE, check_state
from outlast_worker.sharding import Strategy, arrange
from outlast_worker.shards import Taken, take_out
from outlast_worker.snapshot import has_nan
from outlast_worker.trainstate import TrainState
from outlast_worker.writing import image_of, shard_name


def save_sharded_checkpoint(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    state: TrainState,
    folder: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    strategy: Strategy = "round_robin",
    parts: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Path:
    """Save everything that a run needs to go on as shards, ``meta.pt``, and ``index.json`` with their sha256.

    ``folder`` must be new or empty: a checkpoint is never overwritten. It appears as a whole, so a kill leaves
    nothing under its name. Which ``strategy`` to prefer is said in outlast_worker.sharding; ``num_shards`` (2)
    is for round_robin and size. The format is that of a generation, so ``outlast verify`` reads it too.
    """
    began = time.monotonic()
    target = Path(folder)
    require_safe_loader()
    proof = file_proof()  # None but under `outlast prove`
    if proof is not None:
        proof.saving(state, target)
    tree = check_state(trainstate.gather(model, optimizer, scheduler, state, parts))
    taken, labels = arrange(take_out(tree, inline=INLINE), tree, strategy, num_shards)
    index = _index(target, state, tree, code, data)
    _require_free(target)
    make_folder(target.parent)
    clear_beside(target)
    temporary = temporary_name(target)
    temporary.mkdir()
    try:
        files = _write(temporary, taken)
        holds = {shard_name(number): label for number, label in enumerate(labels)}
        extra = {"num_shards": len(labels), "strategy": strategy, "shards": holds}
        seconds = time.monotonic() - began
        whole = msgspec.structs.replace(index, files=files, extra=extra, save_seconds=seconds)
        _finish(temporary, encode_index(whole))
        _publish(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            durable.delete_tree(temporary)
        raise
    if proof is not None:
        proof.saved(state, trainstate.named_parts(model, optimizer, scheduler, parts))
    return target


def load_sharded_checkpoint(
    folder: str | os.PathLike[str],
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
) -> TrainState:
    """Bring everything to the state in a sharded checkpoint, or refuse; as load_checkpoint does.

    Every file is read once, by names that can't leave the folder, and held against the index before anything
    of it is merged. A generation that a Checkpointer saved loads too, given all of its parts.
    """
    loaded = read_generation(Path(folder))
    index = loaded.index
    saved = {"fingerprint": index.fingerprint, "code": index.code, "data": index.data}
    name = Path(folder).name
    check_identity(saved, code=code, data=data, identity=identity, name=name)
    return trainstate.restore(
        loaded.state,
        model,
        optimizer,
        scheduler,
        parts,
        other_torch=other_torch(index.fingerprint),
        restore_rng=restore_rng,
        allow_rng_loss=allow_rng_loss,
    )


def _index(
    target: Path,
    state: TrainState,
    tree: Mapping[str, Any],
    code: Mapping[str, Any] | None,
    data: Mapping[str, Any] | None,
) -> Index:
    name = GenerationName.parse(target.name)
    if name is not None and name.step != state.step:
        raise ValueError(f"the state is of step {state.step}, but the folder is called {target.name!r}")
    return Index(
        run_id="",  # of no run
        attempt=name.attempt if name is not None else 1,
        step=state.step,
        epoch=state.epoch,
        batch_in_epoch=state.batch_in_epoch,
        saved_at=time.time(),
        fingerprint=fingerprint(),
        code=recorded(code or {}),
        data=recorded(data or {}),
        healthy=not has_nan(tree["parts"]) and all(map(math.isfinite, state.losses[-1:])),
        reason="save_sharded_checkpoint",
    )


def _require_free(target: Path) -> None:
    """Before the work of writing; the rename at its end decides."""
    try:
        used = bool(os.listdir(target))
    except FileNotFoundError:
        used = False
    except NotADirectoryError:
        used = True
    if used:
        raise _taken(target)


def _write(folder: Path, taken: Taken) -> dict[str, FileEntry]:
    names = [shard_name(number) for number in range(len(taken.shards))]
    files = {}
    for number, name in enumerate(names):
        image = image_of(taken, number)
        if image is None:
            files[name] = _add(folder / name, taken.content(number))
        else:
            files[name] = _entry(durable.write_file(folder / name, image))
    files[META] = _add(folder / META, {**taken.skeleton, "shards": names})
    return files


def _add(path: Path, content: Any) -> FileEntry:
    with contextlib.closing(stream(content)) as chunks:
        return _entry(durable.write_file(path, chunks))


def _entry(written: durable.Written) -> FileEntry:
    return FileEntry(bytes=written.bytes, sha256=written.sha256)


def _finish(folder: Path, index: bytes) -> None:
    durable.write_file(folder / INDEX, index)
    durable.write_file(folder / INDEX_DIGEST, digest_line(index))
    durable.fsync_dir(folder)


def _publish(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)  # over an empty folder too, and never over one that holds anything
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _taken(target) from error
        raise
    durable.fsync_dir(target.parent)


def _taken(target: Path) -> AlreadySealed:
    return AlreadySealed(
        f"{str(target)!r} is not empty, and a checkpoint is never overwritten; save each one in a folder of its "
        "own, with the step in its name"
    )
