"""Write a state tree as a sealed generation: shards, meta.pt, and the index over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer
from outlast_worker.digest import first_difference, state_sha256
from outlast_worker.image import ShardImage
from outlast_worker.linking import Links
from outlast_worker.ptfile import require_safe_loader
from outlast_worker.restoring import read_files
from outlast_worker.shards import MAX_SHARD_BYTES, Place, Taken, place, take_out
from outlast_worker.typewalk import loadable
from outlast_worker.writing import write_files

INLINE = ("rng",)
"""Buckets whose tensors stay in meta.pt, so that it alone tells how the streams go on."""


class LoadBackFailed(ValueError):
    """What was written does not load as what was saved, so it was not sealed. A defect of ours."""


class IndexFields(Struct, frozen=True):
    """What the index records beside the state: why it was saved, and what must be the same at a resume."""

    reason: str = ""
    healthy: bool = True
    final: bool = False
    fingerprint: Mapping[str, Any] = {}
    code: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}
    data: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    world_size: int = 1


class Saved(Struct, frozen=True):
    """A generation that was sealed."""

    path: Path
    bytes: int  # that were written
    seconds: float
    state_sha256: str | None  # of a final generation, or one that was loaded back


def save_generation(
    checkpoints: Path,
    name: GenerationName,
    state: Mapping[str, Any],
    *,
    run_id: str,
    fields: IndexFields,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: Callable[[int], None] | None = None,
    load_back: bool = False,
    on_nan: Callable[[], None] | None = None,
    links: Links | None = None,
    apart: Collection[Place] | None = None,
    taken: Taken | None = None,
) -> Saved:
    """Write and seal; a failure leaves nothing under the name, or a whole one where the last fsync was what failed.

    ``progress`` is told the bytes written so far. With ``load_back`` the files are loaded and compared with
    ``state`` before they are sealed. ``on_nan`` is called before the seal where a tensor of a part holds a NaN.
    ``apart`` is as for `take_state`, which is done here unless it was; ``links`` is as for `write_files`. Raises
    NotLoadable before anything is written, Fenced and OSError later.
    """
    began = time.monotonic()
    taken = taken or take_state(state, max_shard_bytes=max_shard_bytes, apart=apart)
    digest = state_sha256(dict(state)) if fields.final or load_back else None

    def written(sealer: Sealer, nan: bool) -> None:
        if load_back:
            _compare(sealer, state)
        if nan and on_nan is not None:
            on_nan()

    return seal_taken(
        checkpoints,
        name,
        taken,
        state["counters"],
        run_id=run_id,
        fields=fields,
        progress=progress,
        before_seal=written,
        digest=digest,
        began=began,
        links=links,
    )


def take_state(
    state: Mapping[str, Any],
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    apart: Collection[Place] | None = None,
) -> Taken:
    """The state as its shards and what is left without them. NotLoadable names what would not load again.

    The tensors at the places ``apart`` go to shards of their own.
    """
    require_safe_loader()
    return take_out(
        check_state(state),
        inline=INLINE,
        max_shard_bytes=max_shard_bytes,
        apart=(lambda tensor: place(tensor) in apart) if apart else None,
    )


def seal_taken(
    checkpoints: Path,
    name: GenerationName,
    taken: Taken,
    counters: Mapping[str, int],
    *,
    run_id: str,
    fields: IndexFields,
    images: Sequence[ShardImage | None] = (),
    meta: memoryview | None = None,
    progress: Callable[[int], None] | None = None,
    before_seal: Callable[[Sealer, bool], None] | None = None,
    digest: str | None = None,
    began: float,
    links: Links | None = None,
    threads: int | None = None,
) -> Saved:
    """Write what was taken, from ``images`` and ``meta`` where given, and seal it; as `save_generation` says.

    At most ``threads`` write it, or as many as there are cores. What ``before_seal`` raises, once all files are
    written, ends the save; it is told whether a part holds a NaN, which makes the generation unhealthy. ``began`` is
    on the monotonic clock.
    """
    sealer = Sealer(checkpoints, name.attempt, name, progress=progress)
    sealer.begin()
    try:
        nan = write_files(sealer, taken, images, meta, links, threads)
        if before_seal is not None:
            before_seal(sealer, nan)
        fields = structs.replace(fields, healthy=fields.healthy and not nan)
        path = sealer.seal(index_of(name, counters, run_id, fields, digest, time.monotonic() - began))
    except BaseException:
        sealer.abort()
        raise
    if links is not None:
        links.sealed(path, sealer.files)
    return Saved(path, sealer.bytes_written, time.monotonic() - began, digest)


def check_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state in types that load again; NotLoadable names the first place that does not."""
    if state.get("schema") != Schema.META:
        raise ValueError(f"the state has schema {state.get('schema')!r}, not {Schema.META!r}")
    checked: dict[str, Any] = loadable(dict(state))
    return checked


def _compare(sealer: Sealer, state: Mapping[str, Any]) -> None:
    try:
        loaded = read_files(sealer.folder, sealer.files)
    except IntegrityError as error:
        raise LoadBackFailed(f"{str(sealer.name)!r} was written but doesn't load: {error}") from error
    difference = first_difference(dict(state), loaded)
    if difference is not None:
        raise LoadBackFailed(f"{str(sealer.name)!r} doesn't load as it was saved: {difference}")


def index_of(
    name: GenerationName,
    counters: Mapping[str, int],
    run_id: str,
    fields: IndexFields,
    digest: str | None,
    seconds: float,
) -> Index:
    """The index of a generation, but for its files."""
    return Index(
        run_id=run_id,
        attempt=name.attempt,
        step=counters["step"],
        epoch=counters["epoch"],
        batch_in_epoch=counters["batch_in_epoch"],
        world_size=fields.world_size,
        saved_at=time.time(),
        save_seconds=seconds,
        fingerprint=dict(fields.fingerprint),
        code=dict(fields.code),
        config=dict(fields.config),
        data=dict(fields.data),
        healthy=fields.healthy,
        final=fields.final,
        state_sha256=digest if fields.final else None,
        reason=fields.reason,
        extra=dict(fields.extra),
    )
