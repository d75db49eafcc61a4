"""Real text that is always at hand: the source of the running Python's standard library, as bytes."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

LIMIT = 8_000_000
"""Bytes of text at most."""

HELD_OUT_EVERY = 20
"""Of so many files in sorted order, the last is held out, whole: no line of it is trained on."""

# What is not the library itself, or would tell the model about code that is there to be wrong.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """The text in two parts, and what it is: the same on every start, or the run is another one."""

    train: bytes
    held_out: bytes
    identity: dict[str, Any]


def read_corpus(root: Path | None = None, limit: int = LIMIT) -> Corpus:
    """Read the source files below ``root`` in sorted order, up to ``limit`` bytes; the last may be cut."""
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    digest = hashlib.sha256()
    files = total = 0
    for name in _source_files(root):
        text = (root / name).read_bytes()[: limit - total]
        if not text:
            continue
        files, total = files + 1, total + len(text)
        held_out = files % HELD_OUT_EVERY == 0
        parts[held_out].append(text)
        digest.update(b"%s\0%d\0%d\0" % (os.fsencode(name), held_out, len(text)))
        digest.update(text)
        if total >= limit:
            break
    train, held = b"".join(parts[0]), b"".join(parts[1])
    if not held:
        raise FileNotFoundError(
            f'cannot make a corpus from "{root}": {files} source files are too few to hold one out of '
            f"{HELD_OUT_EVERY}; is the standard library installed as files, and the limit of {limit} bytes enough?"
        )
    identity = {"name": "stdlib", "files": files, "bytes": total, "sha256": digest.hexdigest()}
    return Corpus(train, held, identity)


class Windows(Dataset[Tensor]):
    """The training text cut into windows, each one byte longer than the context: inputs and next bytes."""

    def __init__(self, corpus: Corpus, context: int) -> None:
        self.identity = {**corpus.identity, "context": context}  # goes into the index of each generation
        self.text = as_tensor(corpus.train)
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.text[start : start + self.context + 1]


def as_tensor(text: bytes) -> Tensor:
    """The bytes as a tensor of their own."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def split_windows(text: bytes, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and next bytes of each whole window of a text: two tensors of one row a window."""
    whole = as_tensor(text).long()
    rows = (len(whole) - 1) // context
    return whole[: rows * context].view(rows, context), whole[1 : rows * context + 1].view(rows, context)


def _source_files(root: Path) -> list[str]:
    """Names of the source files relative to the root, sorted the same way on every machine."""
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        for name in files:
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file() and not path.is_symlink():
                yield path.relative_to(root).as_posix()
