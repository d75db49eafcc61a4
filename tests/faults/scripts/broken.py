"""The product with one order broken, as a careless change might do: the attack on crash points must see it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from tests.faults.scripts import operate

from outlast_jobs import durable, sidecar
from outlast_jobs.generation import INDEX, INDEX_DIGEST, Index, digest_line, encode_index
from outlast_jobs.journal import JournalWriter
from outlast_jobs.sealer import Sealer


def rename_first() -> None:
    """A generation has its final name before its index."""

    def seal(self: Sealer, index: Index) -> Path:
        data = encode_index(msgspec.structs.replace(index, files=dict(self.files)))
        os.rename(self.folder, self.target)
        for member, content in ((INDEX, data), (INDEX_DIGEST, digest_line(data))):
            durable.write_file(self.target / member, content)
        return self.target

    Sealer.seal = seal  # type: ignore[method-assign]


def delete_in_place() -> None:
    """What is deleted keeps its name until it is gone."""

    def discard(path: Path, trash_parent: Path) -> Path:
        durable.delete_tree(path)
        return path

    durable.discard = discard  # type: ignore[assignment]


def copy_aside() -> None:
    """What is set aside is copied, then deleted."""

    def publish(source: Path, target: Path) -> None:
        shutil.copytree(source, target)
        shutil.rmtree(source)

    durable.publish_dir = publish


def write_in_place() -> None:
    """A file is replaced by writing it anew."""

    def replace(path: Path, data: bytes, **_: Any) -> None:
        with open(path, "wb") as file:
            file.write(data)

    durable.replace_file = replace


def journal_late() -> None:
    """A record is kept back until the next one is written."""
    original, kept = JournalWriter.write, list[bytes]()

    def write(self: JournalWriter, lines: Iterable[bytes]) -> None:
        now, kept[:] = list(kept), lines
        original(self, now)

    JournalWriter.write = write  # type: ignore[method-assign]


def file_before_digest() -> None:
    """A checkpoint in one file is replaced before its digest is."""

    def publish(path: Path, data: bytes) -> None:
        durable.replace_file(path, data)
        digest = hashlib.sha256(data).hexdigest()
        durable.replace_file(
            sidecar.digest_file(path), sidecar.encode(path.name, [sidecar.Digest(digest, len(data))])
        )

    operate.publish = publish  # type: ignore[assignment]


BROKEN: dict[str, Callable[[], None]] = {
    "save": rename_first,
    "prune": delete_in_place,
    "quarantine": copy_aside,
    "status write": write_in_place,
    "journal append": journal_late,
    "single file": file_before_digest,
}
"""By the operation that suffers."""
