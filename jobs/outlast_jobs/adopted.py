"""Checkpoints that a trainer without the library writes: which there are, and whether one can be used.

They have no index of ours. What their own formats say of themselves is checked: a zip archive, as torch.save writes
since 1.6, has a crc32 of each member (APPNOTE.TXT, section 4.4.7); safetensors states where its data end; JSON parses.
A file of another format is only seen to be there. Nothing is loaded, renamed or deleted: they are the trainer's own.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_STEP = re.compile(r"step[=_-]?(\d+)", re.IGNORECASE)
_EPOCH = re.compile(r"epoch[=_-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# a loss or another metric, and the number by which Lightning tells a second file of one name
_NO_STEP = re.compile(r"\d+\.\d+|-v\d+(?=(\.[a-z]+)*$)", re.IGNORECASE)
_MOST_DIGITS = 15
_TORCH = frozenset({".pt", ".pth", ".bin", ".ckpt"})
_NEVER_EMPTY = _TORCH | {".safetensors", ".json", ".npz", ".pkl"}
_LONGEST_HEADER = 100_000_000  # bytes, by the safetensors format
_LONGEST_JSON = 64 << 20  # bytes; a larger one is seen to be there
_PIECE = 1 << 20


class Candidate(Struct, frozen=True):
    """One that is there, a folder or a file."""

    path: Path
    step: int
    """By its name; where that has no number, that of the furthest other one which is no newer, else 0."""
    written: float = 0.0
    """When it was changed last, Unix seconds."""
    numbered: bool = True
    """Whether its name has a number. One without is written over, and its age tells of progress."""

    @property
    def name(self) -> str:
        return self.path.name


Whole = dict[Path, tuple[str | None, list[tuple[str, int, int, int]]]]
"""What was found whole: of each its `complete` file, and inode, change time and size of all its files by then."""


class Trouble(Struct, frozen=True):
    """Why one can't be used. ``begun``: its trainer has not finished it, or never will; no fault of the disk's."""

    reason: str
    begun: bool = False
    unread: bool = False
    """It could not be looked at, which says nothing of what it is."""


def candidates(pattern: str, workdir: str) -> list[Candidate]:
    """All that match, relative to the folder in which the command runs; the furthest step first, of one the newest."""
    found: list[Candidate] = []
    for path in glob.glob(os.path.join(glob.escape(workdir), pattern)):
        try:
            written = os.stat(path).st_mtime
        except FileNotFoundError:
            continue  # its trainer has just deleted it, or it is a link to nothing
        made = Path(os.path.abspath(path))
        step = step_of(made.name)
        found.append(Candidate(made, step or 0, written, step is not None))
    placed = []
    for one in found:
        if not one.numbered:
            older = (other.step for other in found if other.written <= one.written)
            one = Candidate(one.path, max(older, default=0), one.written, numbered=False)
        placed.append(one)
    return sorted(placed, key=lambda one: (one.step, one.written, one.path), reverse=True)


def furthest(
    pattern: str, workdir: str, complete: str | None, whole: Whole | None = None
) -> Candidate | None:
    """The furthest one that is whole; None where none is, or none could be looked at."""
    found = look_through(pattern, workdir, complete, whole)
    return next((candidate for candidate, wrong in found if wrong is None), None)


def look_through(
    pattern: str, workdir: str, complete: str | None, whole: Whole | None = None
) -> Iterator[tuple[Candidate, Trouble | None]]:
    """Each candidate with what is wrong with it, as they are asked for; one that goes away meanwhile is left out."""
    for candidate in candidates(pattern, workdir):
        try:
            wrong = trouble(candidate.path, complete, whole)
        except FileNotFoundError:
            continue  # its trainer removes old ones
        except OSError as error:
            wrong = Trouble(f"can't be read: {error.strerror}", unread=True)
        yield candidate, wrong


def step_of(name: str) -> int | None:
    """The step in a name: the number behind "step", as in epoch=2-step=900.ckpt, else behind "epoch", else the last."""
    told = _STEP.findall(name) or _EPOCH.findall(name) or _NUMBER.findall(_NO_STEP.sub(" ", name))
    return int(told[-1][:_MOST_DIGITS]) if told else None


def resume_words(template: str, path: str) -> tuple[str, ...]:
    """What is added to the command; in each word {path} becomes the path. ValueError where it is not closed."""
    return tuple(word.replace("{path}", path) for word in shlex.split(template))


def trouble(path: Path, complete: str | None, whole: Whole | None = None) -> Trouble | None:
    """Why a checkpoint can't be used, or None. OSError where it can't be looked at.

    All of it is read, but not again one that ``whole`` has and whose files were not touched since; it is kept there.
    """
    before = (complete, _stats(path)) if whole is not None else None
    if whole is not None and before == whole.get(path):
        return None
    found = _trouble(path, complete)
    if found is None and whole is not None and before is not None:
        whole[path] = before
    return found


def _stats(path: Path) -> list[tuple[str, int, int, int]]:
    found = [(str(file), file.stat()) for file in (_files(path) if path.is_dir() else [path])]
    return [(name, stat.st_ino, stat.st_ctime_ns, stat.st_size) for name, stat in found]


def _trouble(path: Path, complete: str | None) -> Trouble | None:
    if not path.is_dir():
        if complete is not None:
            return Trouble(f"is no folder, and so has no {complete!r}", begun=True)
        return _of_file(path) if path.stat().st_size else Trouble("is empty")
    if complete is not None and not (path / complete).is_file():
        return Trouble(f"has no {complete!r}: its save was not finished", begun=True)
    files = list(_files(path))
    if not files:
        return Trouble("is an empty folder", begun=True)
    for file in files:
        if found := _of_file(file):
            return Trouble(f"{str(file.relative_to(path))!r} {found.reason}")
    return None


def _files(folder: Path) -> Iterator[Path]:
    def told(error: OSError) -> None:
        raise error

    for base, folders, names in os.walk(folder, onerror=told):
        folders.sort()
        yield from (Path(base, name) for name in sorted(names))


def _of_file(path: Path) -> Trouble | None:
    size, suffix = path.stat().st_size, path.suffix.lower()
    if not size:
        return Trouble("is empty") if suffix in _NEVER_EMPTY else None
    if not path.is_file():
        return Trouble("is no regular file")
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK\x03\x04"):
        return _of_zip(path)
    if suffix in _TORCH and (len(head) < 8 or not head.strip(b"\0")):
        return Trouble("is torn: it has no beginning")
    if suffix == ".safetensors":
        return _of_safetensors(path, head, size)
    if suffix == ".json" and size <= _LONGEST_JSON:
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return Trouble("is no JSON")
    return None


def _of_zip(path: Path) -> Trouble | None:
    """Every member is held against its checksum. Where none agrees, its writer was told to leave them out."""
    bad, good = [], 0
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.file_size:
                    continue
                try:
                    with archive.open(member) as content:
                        while content.read(_PIECE):
                            pass
                    good += 1
                except zipfile.BadZipFile:
                    bad.append(member.filename)
                except (NotImplementedError, RuntimeError):
                    continue  # packed in a way that can't be read here, or encrypted
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        return Trouble(f"is torn: {error}")
    return Trouble(f"is damaged: the checksum of {bad[0]!r} is wrong") if bad and good else None


def _of_safetensors(path: Path, head: bytes, size: int) -> Trouble | None:
    """The first eight bytes are the header's length; the data end where its last offset says, and so does the file."""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size - 8, _LONGEST_HEADER):
        return Trouble("is torn: its header does not fit into it")
    with path.open("rb") as file:
        file.seek(8)
        text = file.read(length)
    try:
        tensors = [value for name, value in json.loads(text).items() if name != "__metadata__"]
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return Trouble("is damaged: its header can't be read")
    if 8 + length + end != size:
        return Trouble(f"is torn: it has {size} bytes, its header says {8 + length + end}")
    return None
