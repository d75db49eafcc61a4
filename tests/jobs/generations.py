"""Small generations, sealed as an attempt does it, then damaged, and how they are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from outlast_jobs.claim import claim
from outlast_jobs.generation import INDEX, INDEX_DIGEST, GenerationName, Index, digest_line
from outlast_jobs.sealer import Sealer
from outlast_jobs.verify import Finding, Verdict, look

RUN = "0123456789abcdef0123456789abcdef"
SHARD = "model.shard-000.pt"
FILES = {"meta.pt": b"m" * 1000, SHARD: bytes(range(256)) * 40}
ALL = [*FILES, INDEX, INDEX_DIGEST]


def index(step: int, attempt: int, run: str = RUN, healthy: bool = True) -> Index:
    return Index(run_id=run, attempt=attempt, step=step, healthy=healthy)


def seal(checkpoints: Path, found: Index, progress: Callable[[int], None] | None = None) -> Path:
    """By an attempt that has the run, or had it."""
    name = GenerationName(found.step, found.attempt)
    sealer = Sealer(checkpoints, found.attempt, name, progress=progress)
    sealer.begin()
    for member, content in FILES.items():
        sealer.add(member, content)
    return sealer.seal(found)


def save(checkpoints: Path, step: int, attempt: int = 1, run: str = RUN, healthy: bool = True) -> Path:
    """By an attempt that claims the run where it has not yet."""
    if not (checkpoints / f".writing-{attempt:04d}").exists():
        claim(checkpoints, attempt)
    return seal(checkpoints, index(step, attempt, run, healthy))


def rewrite_index(path: Path, **changes: object) -> None:
    """A hostile index with a digest that fits."""
    data = json.dumps(json.loads((path / INDEX).read_bytes()) | changes).encode()
    (path / INDEX).write_bytes(data)
    (path / INDEX_DIGEST).write_bytes(digest_line(data))


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def checked(path: Path, full: bool = True, **options: object) -> Finding:
    return look(path, RUN, full=full, **options)  # type: ignore[arg-type]


def verdict(path: Path) -> Verdict:
    return checked(path).verdict
