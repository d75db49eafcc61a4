"""Write the files of a generation: several at a time, each in one pass."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from outlast_jobs.generation import META
from outlast_jobs.sealer import Sealer
from outlast_worker.image import ShardImage, layout_of
from outlast_worker.layout import NoLayout
from outlast_worker.linking import Links
from outlast_worker.ptfile import stream
from outlast_worker.shards import PARTS, Taken
from outlast_worker.snapshot import has_nan


def shard_name(number: int) -> str:
    """The file of a shard."""
    return f"model.shard-{number:03d}.pt"


def meta_of(taken: Taken) -> dict[str, Any]:
    """What ``meta.pt`` holds: the state without what is in the shards, and their names."""
    return {**taken.skeleton, "shards": [shard_name(number) for number in range(len(taken.shards))]}


def write_files(
    sealer: Sealer,
    taken: Taken,
    images: Sequence[ShardImage | None],
    meta: memoryview | None,
    links: Links | None,
    threads: int | None,
) -> bool:
    """Write all shards, from ``images`` where they are given, and ``meta.pt``; what the disk says is raised.

    Nobody reads any of them before the index that names them all. With ``links`` a shard that did not change is linked
    from an earlier generation instead. Returns whether a tensor of a part holds a NaN.
    """
    names = [shard_name(number) for number in range(len(taken.shards))]
    nan = dict.fromkeys(range(len(names)), False)
    found = list(images) or [image_of(taken, number) for number in range(len(names))]

    def write(number: int) -> None:
        image = found[number]
        if image is None:
            nan[number] = has_nan(taken.tensors(number, PARTS))
            _add(sealer, names[number], taken.content(number))
            return
        if links is None or not links.take(sealer, names[number], image):
            sealer.add(names[number], image)
        nan[number] = image.nan

    def write_meta() -> None:
        if meta is None:
            _add(sealer, META, meta_of(taken))
        else:
            sealer.add(META, [meta])

    shards = [lambda number=number: write(number) for number in range(len(names))]
    side_by_side([*shards, write_meta], threads)
    return any(nan.values())


def image_of(taken: Taken, number: int) -> ShardImage | None:
    """A shard's file from the tensors where they lie; None where it has to be streamed through torch."""
    try:
        return ShardImage(layout_of(taken, number), taken.shards[number])
    except NoLayout:
        return None


def side_by_side(jobs: Sequence[Callable[[], None]], threads: int | None = None) -> None:
    """Do all, ``threads`` or as many as there are cores for us at a time; of several errors the first is raised.

    After an error no further job is begun. The calling thread does its share.
    """
    left = list(reversed(jobs))
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                job = left.pop()
            except IndexError:
                return
            try:
                job()
            except BaseException as error:  # raised by the caller, whose failure it is
                errors.append(error)

    count = min(len(jobs), threads or len(os.sched_getaffinity(0)))
    helpers = []
    with contextlib.suppress(RuntimeError):  # no more threads for us: then one does it all
        for _ in range(count - 1):
            helper = threading.Thread(target=work, name="outlast-write", daemon=True)
            helper.start()
            helpers.append(helper)
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]


def _add(sealer: Sealer, member: str, content: Any) -> None:
    with contextlib.closing(stream(content)) as chunks:
        sealer.add(member, chunks)
