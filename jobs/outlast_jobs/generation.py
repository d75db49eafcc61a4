"""The format of a generation: its name, its index and the digest of that, enough to verify without torch."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from outlast_jobs.contract import Schema
from outlast_jobs.errors import Corrupt, UnsafeName
from outlast_jobs.migrations import Migrations, to_current
from outlast_jobs.safejson import parse_object

INDEX = "index.json"
INDEX_DIGEST = "index.json.sha256"
META = "meta.pt"
INDEX_LIMIT = 16 << 20
WRITING = ".writing-"

_NAME = re.compile(r"step-([0-9]{9,18})\.a([0-9]{4,18})(\.final)?")
_DIGEST_LINE = re.compile(rb"([0-9a-f]{64})  index\.json\n")


@functools.total_ordering
class GenerationName(Struct, frozen=True):
    """Which step by which attempt. The order is (attempt, step), never name or mtime.

    ``final`` marks a second seal of a step which the same attempt had sealed before.
    """

    step: int
    attempt: int
    final: bool = False

    def __str__(self) -> str:
        return f"step-{self.step:09d}.a{self.attempt:04d}{'.final' if self.final else ''}"

    def __lt__(self, other: GenerationName) -> bool:
        return (self.attempt, self.step, self.final) < (other.attempt, other.step, other.final)

    def __le__(self, other: GenerationName) -> bool:
        return not other < self

    @classmethod
    def parse(cls, text: str) -> GenerationName | None:
        """The name in ``text``, or None where it is not exactly how a generation's folder is called."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        name = cls(int(match[1]), int(match[2]), match[3] is not None)
        # One name for one generation: surplus zeros would be a second spelling.
        return name if str(name) == text and name.attempt > 0 else None


class FileEntry(msgspec.Struct, frozen=True):
    """What a file of a generation must be."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``index.json``. Fields that a reader doesn't know are passed over."""

    schema: str = Schema.GENERATION
    run_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    epoch: int = 0
    batch_in_epoch: int = 0
    world_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    files: dict[str, FileEntry] = {}
    saved_at: float = 0.0  # unix seconds, to be read by people
    save_seconds: float = 0.0
    fingerprint: dict[str, Any] = {}
    code: dict[str, Any] = {}
    config: dict[str, Any] = {}
    data: dict[str, Any] = {}
    healthy: bool
    final: bool = False
    state_sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    reason: str = ""  # why it was saved
    extra: dict[str, Any] = {}

    @property
    def total_bytes(self) -> int:
        """The bytes of all files named."""
        return sum(entry.bytes for entry in self.files.values())


def encode_index(index: Index) -> bytes:
    """The bytes of ``index.json``. Refuses what ``decode_index`` would not read back."""
    import json  # not above: readers of generations do without it

    tree = msgspec.to_builtins(index)
    # Not msgspec's encoder: that one writes NaN as null without a word.
    text = json.dumps(tree, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    data = text.encode() + b"\n"
    decode_index(data)  # an index that is written but can't be read is the worst kind
    return data


def decode_index(data: bytes) -> Index:
    """The index in ``data``, brought to this version's schema. Corrupt, UnsafeName, UnknownSchema if not."""
    tree = parse_object(data, what=f"{INDEX!r}", limit=INDEX_LIMIT)
    tree = to_current(tree, Schema.GENERATION, _MIGRATIONS, INDEX)
    try:
        index = msgspec.convert(tree, Index)
    except msgspec.ValidationError as error:
        raise Corrupt(f"{INDEX!r} is not an index: {error}") from None
    if not index.files:
        raise Corrupt(f"{INDEX!r} names no files")
    for member in index.files:
        safe_member(member)
    return index


def digest_line(index: bytes) -> bytes:
    """The content of ``index.json.sha256``, in sha256sum's format."""
    return f"{hashlib.sha256(index).hexdigest()}  {INDEX}\n".encode()


def check_digest(index: bytes, line: bytes) -> None:
    """Corrupt, with both digests, unless ``line`` is the digest of ``index``."""
    match = _DIGEST_LINE.fullmatch(line)
    if match is None:
        raise Corrupt(f"{INDEX_DIGEST!r} ({len(line)} bytes) is not one line of sha256sum for {INDEX!r}")
    found, wanted = hashlib.sha256(index).hexdigest(), match[1].decode()
    if found != wanted:
        raise Corrupt(f"{INDEX!r} has sha256 {found}, {INDEX_DIGEST!r} says {wanted}")


def safe_member(name: str) -> str:
    """``name`` if it can only be a plain file of the generation's own folder, else UnsafeName."""
    why = None
    if not name:
        why = "it is empty"
    elif "/" in name:
        why = "it leads out of the folder or into another"
    elif name.startswith("."):
        why = "it begins with a dot"
    elif not name.isprintable():
        why = "it holds characters that can't be shown"
    elif len(name.encode()) > 255:
        why = "it is longer than 255 bytes"
    elif name in (INDEX, INDEX_DIGEST):
        why = "that name is the index's own"
    if why is not None:
        raise UnsafeName(f"unsafe file name {name[:100]!r}: {why}")
    return name


def writing_folder(checkpoints: Path, attempt: int) -> Path:
    """Where an attempt writes what it has not sealed. Made by the claim, gone when a newer attempt claims."""
    return checkpoints / f"{WRITING}{attempt:04d}"


_MIGRATIONS: Migrations = {}
