"""A checkpoint of a single file, and the digest beside it: written so that no kill leaves nothing valid.

``ckpt.pt.sha256`` is what ``sha256sum -c`` reads, with the length in a comment before each line. While the
file is being replaced it names two digests, the new one and the one before: whichever file is there is valid.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from outlast_jobs import durable
from outlast_jobs.durable import Written
from outlast_jobs.errors import Corrupt, Incomplete, IntegrityError
from outlast_jobs.generation import GenerationName
from outlast_jobs.leftovers import clear_beside
from outlast_jobs.look import Finding, Verdict, said

T = TypeVar("T")

SUFFIX = ".sha256"
CHECKPOINT = ".pt"

_LIMIT = 4096
_PIECE = 4 << 20
_TRIES = 5  # of a reader that meets a save; each save gives it one reason to look again
_ENTRY = re.compile(r"(?:# ([0-9]{1,18}) bytes\n)?([0-9a-f]{64}) [ *](.+)\n")


@dataclass(frozen=True)
class Digest:
    """What the file must be; ``bytes`` is None where the digest was written by hand."""

    sha256: str
    bytes: int | None = None


def digest_file(path: Path) -> Path:
    """Where the digest of a checkpoint is."""
    return path.with_name(path.name + SUFFIX)


def encode(name: str, digests: Sequence[Digest]) -> bytes:
    """The content of the digest file."""
    lines = []
    for digest in digests:
        lines += [] if digest.bytes is None else [f"# {digest.bytes} bytes\n"]
        lines.append(f"{digest.sha256}  {name}\n")
    return "".join(lines).encode()


def decode(name: str, data: bytes) -> tuple[Digest, ...]:
    """The digests that a digest file names, each of them valid. Corrupt if it is not one for ``name``."""
    text, at = data.decode("utf-8", "replace"), 0
    found: list[Digest] = []
    while match := _ENTRY.match(text, at):
        if os.path.basename(match[3]) != name:
            break
        found.append(Digest(match[2], None if match[1] is None else int(match[1])))
        at = match.end()
    if not found or at != len(text):
        raise Corrupt(f"{name + SUFFIX!r} is not what sha256sum writes for {name!r}")
    return tuple(found)


def publish(path: Path, chunks: bytes | Iterable[bytes | bytearray | memoryview]) -> Written:
    """Put a checkpoint at ``path``, durably. At each moment the old or the new one is there and valid."""
    for target in (path, digest_file(path)):
        make_place(target)
    temporary = temporary_name(path)
    try:
        written = durable.write_file(temporary, chunks)
        new, beside = Digest(written.sha256, written.bytes), digest_file(path)
        # Both digests before the file, the new one alone after it: either file is named at each moment.
        durable.replace_file(beside, encode(path.name, (new, *_valid_now(path))))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    durable.fsync_dir(path.parent)
    durable.replace_file(beside, encode(path.name, (new,)))
    return written


def read_checked(path: Path, *, require_digest: bool = True) -> memoryview:
    """All of a checkpoint, hashed as it is read; Corrupt or Incomplete if it is not what it must be.

    Only with ``require_digest`` False may the digest be missing. FileNotFoundError where there is neither.
    """
    return _looked_at(Path(path), require_digest, _read)


def look_file(path: Path, *, full: bool = True) -> Finding:
    """What a checkpoint of a single file is worth, as ``look`` says it of a generation."""
    name = GenerationName.parse(path.name.removesuffix(CHECKPOINT))
    size = 0
    try:
        size = _looked_at(path, True, _hash_checked if full else _size_checked)
        verdict = Verdict.VERIFIED
        reason = "it matches its sha256" if full else "the length matches, contents not read"
    except Incomplete as error:
        verdict, reason = Verdict.INCOMPLETE, str(error)
    except IntegrityError as error:
        verdict, reason = Verdict.CORRUPT, str(error)
    except FileNotFoundError as error:
        verdict, reason = Verdict.INCOMPLETE, f"{error.filename!r} is missing"
    except OSError as error:
        verdict, reason = Verdict.UNREADABLE, f"can't be read: {said(error)}"
    return Finding(path, name, verdict, reason, full and verdict is Verdict.VERIFIED, None, size)


def scan_files(folder: Path) -> list[Path]:
    """Checkpoints of single files in a folder, also those that only their digest tells of; newest first.

    Without a step in the name they come last, by name.
    """
    names = os.listdir(folder)
    stems = {n.removesuffix(SUFFIX) for n in names if n.endswith(CHECKPOINT + SUFFIX)}
    stems |= {n for n in names if n.endswith(CHECKPOINT) and GenerationName.parse(n[: -len(CHECKPOINT)])}
    known, other = [], []
    for stem in sorted(stems):
        if stem.startswith("."):
            continue
        name = GenerationName.parse(stem.removesuffix(CHECKPOINT))
        other.append(folder / stem) if name is None else known.append((name, folder / stem))
    return [path for _, path in sorted(known, reverse=True)] + other


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        durable.fsync_dir(folder.parent)


def make_place(path: Path) -> None:
    """Have the folder of a file that is about to be replaced, without what killed writes of it left there.

    NotRegular where a device, a pipe or a socket stands: a file in its place would end it for everybody.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        mode = stat.S_IFREG  # nothing is there, or the write will tell
    if not stat.S_ISDIR(mode):
        durable.require_regular(mode, path)
    make_folder(path.parent)
    clear_beside(path)


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that nobody else uses and nobody takes for a checkpoint."""
    return path.with_name(f"{durable.TEMPORARY}{path.name[: durable.NAME_LIMIT]}-{os.urandom(6).hex()}")


def _valid_now(path: Path) -> tuple[Digest, ...]:
    """The digest of what is at ``path`` now, or none where that is not valid."""
    try:
        digests = decode(path.name, durable.read_file(digest_file(path), _LIMIT))
        if len(digests) == 1 and path.exists():
            return digests  # not read again to be believed: naming it changes nothing if it is wrong
        fd = durable.open_regular(path)  # an earlier save was cut here: one of the two is there
        try:
            return (_matched(path.name, _hash(fd), digests),)
        finally:
            os.close(fd)
    except (FileNotFoundError, IntegrityError):
        return ()


def _looked_at(path: Path, required: bool, look: Callable[[int, str, tuple[Digest, ...]], T]) -> T:
    """What ``look`` finds in a checkpoint, whose digests are read after it was opened."""
    path, left = Path(os.path.realpath(path)), _TRIES
    while True:
        left -= 1
        fd = _open(path)
        try:
            digests = _digests(path, required)
            try:
                return look(fd, path.name, digests)
            except Corrupt:
                # A save in between leaves an old file in our hand and the new digest beside it.
                if left <= 0 or not _moved_on(fd, path, digests):
                    raise
        finally:
            os.close(fd)


def _open(path: Path) -> int:
    try:
        return durable.open_regular(path)
    except FileNotFoundError:
        if digest_file(path).exists():
            raise Incomplete(f"{path.name!r} is missing, though its digest is there") from None
        raise


def _digests(path: Path, required: bool) -> tuple[Digest, ...]:
    try:
        return decode(path.name, durable.read_file(digest_file(path), _LIMIT))
    except FileNotFoundError:
        if required:
            raise Incomplete(
                f"{path.name + SUFFIX!r} is missing, so nothing tells whether {path.name!r} is whole; "
                f'if you trust it, write one with "sha256sum {path.name} > {path.name + SUFFIX}"'
            ) from None
        return ()


def _read(fd: int, name: str, digests: tuple[Digest, ...]) -> memoryview:
    size = os.fstat(fd).st_size
    _check_size(name, size, digests)  # before that much memory is asked for
    digest, filled, data = hashlib.sha256(), 0, memoryview(bytearray(size))
    while filled < size and (got := durable.read_into(fd, data[filled : filled + _PIECE])):
        digest.update(data[filled : filled + got])
        filled += got
    if filled != size:
        raise Corrupt(f"{name!r} ended after {filled} of {size} bytes")
    if digests:
        _matched(name, Digest(digest.hexdigest(), size), digests)
    return data.toreadonly()


def _size_checked(fd: int, name: str, digests: tuple[Digest, ...]) -> int:
    size = os.fstat(fd).st_size
    _check_size(name, size, digests)
    return size


def _hash_checked(fd: int, name: str, digests: tuple[Digest, ...]) -> int:
    _size_checked(fd, name, digests)
    return _matched(name, _hash(fd), digests).bytes or 0


def _hash(fd: int) -> Digest:
    digest, total = hashlib.sha256(), 0
    with memoryview(bytearray(_PIECE)) as buffer:
        while got := durable.read_into(fd, buffer):
            digest.update(buffer[:got])
            total += got
    return Digest(digest.hexdigest(), total)


def _check_size(name: str, size: int, digests: tuple[Digest, ...]) -> None:
    sizes = [digest.bytes for digest in digests]
    if sizes and None not in sizes and size not in sizes:
        wanted = " or ".join(map(str, sizes))
        raise Corrupt(f"{name!r} has {size} bytes, {name + SUFFIX!r} says {wanted}")


def _matched(name: str, found: Digest, digests: tuple[Digest, ...]) -> Digest:
    if all(digest.sha256 != found.sha256 for digest in digests):
        wanted = " or ".join(digest.sha256 for digest in digests)
        raise Corrupt(f"{name!r} has sha256 {found.sha256}, {name + SUFFIX!r} says {wanted}")
    return found


def _moved_on(fd: int, path: Path, digests: tuple[Digest, ...]) -> bool:
    """Whether a save replaced the file or its digest since they were looked at."""
    try:
        mine, now = os.fstat(fd), os.stat(path)
        return (mine.st_ino, mine.st_dev) != (now.st_ino, now.st_dev) or _digests(path, True) != digests
    except (OSError, IntegrityError):
        return False
