"""Everything that can befall a sealed generation, and a journal that remembers it as whole all the same."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import Run
from tests.jobs.generations import SHARD, rewrite_index

from outlast_jobs import events as journal
from outlast_jobs.generation import INDEX, INDEX_DIGEST, META, GenerationName, decode_index
from outlast_jobs.journal import JournalWriter
from outlast_jobs.verify import stats_of

MEMBERS = (META, SHARD, INDEX, INDEX_DIGEST)

Damage = Callable[[Path], None]


def remember(run: Run, *generations: Path) -> None:
    """Record each generation, as it is now, as verified in full: what a supervisor does that has read it."""
    writer = JournalWriter.open(run.directory)
    for path in generations:
        stats = stats_of(path, decode_index((path / INDEX).read_bytes()))
        writer.write([writer.append(journal.VERIFIED, generation=path.name, stats=stats, healthy=True)])
    writer.close()


def flip(member: str) -> Damage:
    """One bit, in the middle of a file, in place."""

    def damage(path: Path) -> None:
        with open(path / member, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 0x10]))

    return damage


def cut(path: Path) -> None:
    os.truncate(path / SHARD, (path / SHARD).stat().st_size - 1)


def zeros(path: Path) -> None:
    """Every file has its length and nothing in it: names survive a power cut that data does not."""
    for member in MEMBERS:
        (path / member).write_bytes(b"\0" * (path / member).stat().st_size)


def zeros_in(member: str) -> Damage:
    return lambda path: (path / member).write_bytes(b"\0" * (path / member).stat().st_size) and None


def empty(path: Path) -> None:
    for member in MEMBERS:
        os.truncate(path / member, 0)


def empty_in(member: str) -> Damage:
    return lambda path: os.truncate(path / member, 0)


def missing(member: str) -> Damage:
    return lambda path: (path / member).unlink()


def foreign(path: Path) -> None:
    """Another run's generation under a name that would be ours."""
    rewrite_index(path, run_id="f" * 32)


def leads_outside(name: str) -> Damage:
    """An index, right in every digest, that names a file beside the checkpoints; {run} is the run directory."""

    def damage(path: Path) -> None:
        run = path.parent.parent
        shutil.move(path / SHARD, run / "outside.pt")
        files = json.loads((path / INDEX).read_bytes())["files"]
        files[name.replace("{run}", str(run))] = files.pop(SHARD)
        rewrite_index(path, files=files)

    return damage


def linked_file(path: Path) -> None:
    """A shard that is a link to the right bytes elsewhere."""
    outside = path.parent.parent / "elsewhere.pt"
    shutil.move(path / SHARD, outside)
    (path / SHARD).symlink_to(outside)


def linked_folder(path: Path) -> None:
    """A generation that is a link to a sound one elsewhere."""
    outside = path.parent.parent / "elsewhere"
    path.rename(outside)
    path.symlink_to(outside)


def piped(path: Path) -> None:
    """A shard that is a named pipe: whoever opens it to read waits for ever."""
    (path / SHARD).unlink()
    os.mkfifo(path / SHARD)


def no_folder(path: Path) -> None:
    """A plain file where a generation should be."""
    shutil.rmtree(path)
    path.write_bytes(b"not a folder")


def other_name(path: Path) -> None:
    """A sound generation under the name of a later step."""
    name = GenerationName.parse(path.name)
    older = next(p for p in sorted(path.parent.iterdir()) if p.name.startswith("step-") and p != path)
    shutil.rmtree(path)
    shutil.copytree(older, path.parent / str(name))


class _Runs:
    """Runs code when it is unpickled by a loader that lets it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


def runs_code(mark: Path) -> Damage:
    """A meta.pt as torch writes it, of a pickle that touches ``mark``; index and digests fit it."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(path / META, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(_Runs(mark), protocol=2))
            archive.writestr("archive/byteorder", "little")
            archive.writestr("archive/version", "3\n")
        data = (path / META).read_bytes()
        files = json.loads((path / INDEX).read_bytes())["files"]
        files[META] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        rewrite_index(path, files=files)

    return damage


def content(path: Path) -> dict[str, bytes | str]:
    """What lies in a generation, links as what they point to."""
    found: dict[str, bytes | str] = {}
    for each in [path, *(path.iterdir() if path.is_dir() and not path.is_symlink() else [])]:
        if each.is_symlink():
            found[each.name] = os.readlink(each)
        elif each.is_file():
            found[each.name] = each.read_bytes()
        else:
            found[each.name] = oct(stat.S_IFMT(each.lstat().st_mode))
    if path.name in found:
        found["."] = found.pop(path.name)
    return found
