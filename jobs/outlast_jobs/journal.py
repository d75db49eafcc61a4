"""The journal: every event and decision of a run as JSON lines, one append-only file a supervisor's life."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from outlast_jobs import durable
from outlast_jobs.beneath import open_beneath
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.identity import boot_id, hostname
from outlast_jobs.rundir import RunDirectory

LINE_LIMIT = 1024 * 1024
"""The most bytes of one record: reading a damaged file takes no more memory than reading a sound one."""
_MOST_DAMAGE = 200  # messages; a file of nothing but damage must not fill the memory either
_NAME = re.compile(r"(\d{4}|[1-9]\d{4,11})-(.+)\.jsonl")  # no life could follow a longer number
_SHORTENINGS = ((16_384, 2_000), (1_024, 200), (64, 20))  # most characters of a text, most items of a list


class Record(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.JOURNAL):
    """One line of a journal."""

    seq: int
    """Counts the records of one life, from 1."""
    wall: float
    mono: float
    boot: str
    life: int
    host: str
    event: str
    data: dict[str, Any] = {}


class Journal(Struct, frozen=True):
    """All that was recorded, in order, and where a line could not be read: "file:line: why"."""

    records: tuple[Record, ...]
    damage: tuple[str, ...]


class JournalWriter:
    """The file of this supervisor's life.

    `append` only makes the line, and belongs to one thread; `write` touches the disk, and belongs to one
    thread too, which may be another. Lines whose write failed can be written again: readers take each once.
    """

    def __init__(self, run: RunDirectory, life: int, host: str, fd: int) -> None:
        self.life = life
        self.path = run.journal / _file_name(life, host)
        self._host = host
        self._fd = fd
        self._seq = 0
        self._sound = 0  # bytes that are known to be whole lines
        self._torn = False

    @classmethod
    def open(cls, run: RunDirectory, host: str | None = None) -> JournalWriter:
        """Begin the next life: a new file, under the next number over all hosts."""
        name = host or hostname()
        skip = 0
        while True:
            life = newest_life(run) + 1 + skip
            path = run.journal / _file_name(life, name)
            try:
                fd = open_beneath(run.path, path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            if [number for number, _, _ in _files(run)].count(life) == 1:
                durable.fsync_dir(run.journal)
                return cls(run, life, name, fd)
            # Another host took the same number at the same time, which exclusive creation can't prevent.
            os.close(fd)
            path.unlink()
            skip = os.urandom(1)[0] % 4

    def append(self, event: str, data: Mapping[str, Any] | None = None, /, **more: Any) -> bytes:
        """The line of the next record. Call `write` with it before acting on what it says."""
        self._seq += 1
        plain = _plain({**(data or {}), **more})
        line = self._line(event, plain)
        for texts, items in _SHORTENINGS:
            if len(line) <= LINE_LIMIT:
                return line
            line = self._line(event, _shortened(plain, texts, items))
        return line if len(line) <= LINE_LIMIT else self._line(event, {"too_large": len(line)})

    def write(self, lines: Iterable[bytes]) -> None:
        """Write the lines durably. After an OSError call again with the same lines and any newer."""
        data = memoryview(self._mended() + b"".join(lines))
        self._torn = True
        written = 0
        while written < len(data):
            written += os.write(self._fd, data[written:])
        os.fsync(self._fd)
        self._torn = False
        self._sound = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _mended(self) -> bytes:
        """Cut off what a failed write left, unacknowledged; where that fails, what ends its line."""
        if self._torn:
            try:
                os.ftruncate(self._fd, self._sound)
            except OSError:
                return b"\n"
        return b""

    def _line(self, event: str, data: dict[str, Any]) -> bytes:
        record = Record(
            self._seq, time.time(), time.monotonic(), boot_id(), self.life, self._host, event, data
        )
        return msgspec.json.encode(record, enc_hook=str) + b"\n"


def newest_life(run: RunDirectory) -> int:
    """The highest number of a life on any host, 0 for none."""
    return max((life for life, _, _ in _files(run)), default=0)


def read_journal(run: RunDirectory) -> Journal:
    """All records of all lives in order of (life, sequence), each once."""
    damage: list[str] = []
    records = tuple(iter_journal(run, damage))
    return Journal(records, tuple(damage))


def journal_end(run: RunDirectory) -> dict[str, int]:
    """Where each life's file ends by now, by its name: from there on is new what `iter_journal` may be asked for."""
    found: dict[str, int] = {}
    for _, _, path in _files(run):
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_size
    return found


def iter_journal(
    run: RunDirectory, damage: list[str], since: Mapping[str, int] | None = None
) -> Iterator[Record]:
    """The same, holding one record at a time; what could not be read is added to ``damage`` on the way.

    With ``since``, an earlier `journal_end`, only what was written after it, and a little of what was before: a
    failed write that is taken back makes a file shorter. Numbers of lines then count from there.
    """
    for life, _, path in _files(run):
        notes = _Notes(path, damage)
        try:
            with os.fdopen(durable.open_regular(path), "rb") as file:
                if since is not None and (start := since.get(path.name, 0) - LINE_LIMIT) > 0:
                    file.seek(start)
                    file.readline(LINE_LIMIT)  # most likely the end of a line
                yield from _records(file, life, notes)
        except FileNotFoundError:
            continue
        except (OSError, IntegrityError) as error:
            notes.add(None, f"cannot be read: {error}")


class _Notes(Struct):
    """Collects what is wrong with one file."""

    path: Path
    damage: list[str]

    def add(self, line: int | None, why: str) -> None:
        if len(self.damage) < _MOST_DAMAGE:
            place = self.path.name if line is None else f"{self.path.name}:{line}"
            self.damage.append(f"{place}: {why}")
        elif len(self.damage) == _MOST_DAMAGE:
            self.damage.append("more damage is not listed")


def _records(file: BinaryIO, life: int, notes: _Notes) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(Record)
    last = 0
    for number, line in _lines(file, notes):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            notes.add(number, f"no record: {str(error)[:200]}")
            continue
        if record.life != life:
            notes.add(number, f"says it is of life {record.life}")
            continue
        if record.seq <= last:
            continue  # written again after a write that seemed to have failed
        if record.seq > last + 1:
            notes.add(number, f"before it {_span(last + 1, record.seq - 1)} missing")
        last = record.seq
        yield record


def _lines(file: BinaryIO, notes: _Notes) -> Iterator[tuple[int, bytes]]:
    """Whole lines with their numbers. A last line without its end was never acknowledged, and is dropped."""
    number = 0
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        if line.endswith(b"\n"):
            yield number, line
        elif len(line) > LINE_LIMIT:
            notes.add(number, f"no record: over {LINE_LIMIT} bytes")
            while (rest := file.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                durable.skip_hole(file)


def _span(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"


def _files(run: RunDirectory) -> list[tuple[int, str, Path]]:
    try:
        names = os.listdir(run.journal)
    except FileNotFoundError:
        return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((int(m[1]), m[2], run.journal / m[0]) for m in matches if m)


def _file_name(life: int, host: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:64] or "host"
    return f"{life:04d}-{safe}.jsonl"


def _plain(value: Any) -> Any:
    """The same as JSON can hold it: floats that are no numbers as text, no half of a surrogate pair."""
    match value:
        case str():
            return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else repr(value)
        case Mapping():
            return {str(_plain(str(key))): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case None | bool():
            return value
        case int():
            return int(value) if -(2**63) <= value < 2**63 else str(value)
    return _plain(msgspec.to_builtins(value, enc_hook=str))


def _shortened(value: Any, texts: int, items: int) -> Any:
    match value:
        case str() if len(value) > texts:
            return f"{value[:texts]}… ({len(value) - texts} more)"
        case dict():
            return {
                _shortened(k, texts, items): _shortened(value[k], texts, items) for k in list(value)[:items]
            }
        case list():
            return [_shortened(item, texts, items) for item in value[:items]]
    return value
