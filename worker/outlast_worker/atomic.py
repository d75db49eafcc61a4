"""Write a file as a whole or not at all: a payload of tensors and plain values, or JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from outlast_jobs import durable
from outlast_jobs.durable import Written
from outlast_jobs.errors import Corrupt
from outlast_jobs.sidecar import make_place, temporary_name
from outlast_worker.ptfile import (
    UnsafeTorch,
    load_pt,
    not_by_the_file,
    require_safe_loader,
    stream,
    telling_line,
)
from outlast_worker.shards import put_back, take_out
from outlast_worker.typewalk import loadable, original


def atomic_save(payload: Any, path: str | os.PathLike[str]) -> Written:
    """``torch.save`` that a kill can't cut: the old content or the whole new one is at ``path``, durably.

    Written under a unique name in the same folder, synced, then ``os.replace``. A payload that would save but
    not load again with ``weights_only=True`` is NotLoadable, naming the place, before anything is written.
    """
    target = Path(path)
    with serialized(loadable(payload)) as chunks:
        make_place(target)
        temporary = temporary_name(target)
        try:
            written = durable.write_file(temporary, chunks)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        durable.fsync_dir(target.parent)
    return written


def atomic_write_json(value: Any, path: str | os.PathLike[str]) -> None:
    """JSON at ``path``, as a whole and durably. NaN and infinities, which JSON doesn't have, are refused."""
    target = Path(path)
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{target.name!r} can't be written as JSON: {error}") from error
    make_place(target)
    durable.replace_file(target, text.encode() + b"\n")


@contextlib.contextmanager
def serialized(payload: Any) -> Generator[Generator[bytes, None, None], None, None]:
    """The bytes of a loadable payload as they are made, for a durable write."""
    require_safe_loader()
    with contextlib.closing(stream(compact(payload))) as chunks:
        yield chunks


def compact(tree: Any) -> Any:
    """The tree with its tensors on the CPU; of a view only what it shows, and shared memory still shared."""
    taken = take_out(tree)
    return put_back(taken.skeleton, [taken.content(number) for number in range(len(taken.shards))])


def deserialized(data: memoryview | bytes, name: str) -> Any:
    """What was saved, from bytes that were checked. Corrupt where the safe loader refuses them."""
    try:
        return original(load_pt(data))
    except (UnsafeTorch, MemoryError):
        raise
    except Exception as error:  # hostile content makes the loader raise all sorts of things
        if other := not_by_the_file(error, repr(name)):
            raise other from error
        raise Corrupt(f"the safe loader refuses {name!r}: {telling_line(error)}") from error
