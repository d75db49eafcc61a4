"""The logs of all attempts as one text: found, read by seeking, and with progress bars collapsed."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from outlast_jobs.durable import open_regular
from outlast_jobs.units import format_size

_NAME = re.compile(r"attempt-(\d+)\.log")
_BLOCK = 1 << 16
_LONGEST_LINE = 1 << 20  # a longer one is shown in pieces


class Position(Struct, frozen=True):
    """A place in the logs of a run: the attempt, and an offset in its file."""

    attempt: int
    offset: int = 0


class Piece(Struct, frozen=True):
    """Some bytes of one attempt's log, and where the next ones begin."""

    data: bytes
    next: Position


def attempt_logs(logs: Path) -> dict[int, Path]:
    """The log of each attempt, in the order of the attempts."""
    try:
        names = os.listdir(logs)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): logs / name for name in names if (match := _NAME.fullmatch(name))}
    return dict(sorted(found.items()))


def read_on(path: Path, at: Position) -> Iterator[Piece]:
    """What a log holds from a position on. Where its middle was freed, a line says so instead of zeros.

    Opened anew each time: on a network file system that is what makes the kernel ask for the newest size.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(fd).st_size
        offset = at.offset if at.offset <= size else 0  # cut short by somebody: begin again
        for start, until in _data(fd, offset, size):
            if start > offset:
                gap = f"\n[{format_size(start - offset)} of this log were freed]\n".encode()
                yield Piece(gap, Position(at.attempt, start))
            offset = start
            while offset < until:
                data = os.pread(fd, min(_BLOCK, until - offset), offset)
                if not data:
                    break
                offset += len(data)
                yield Piece(data, Position(at.attempt, offset))
    finally:
        os.close(fd)


def _data(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are not holes."""
    while start < stop:
        try:
            begin = os.lseek(fd, start, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            begin, end = start, stop  # this file system does not know of holes
        if begin >= stop:
            return
        yield begin, min(end, stop)
        start = end


def last_lines(logs: dict[int, Path], count: int) -> Position | None:
    """Where the last so many lines begin, over all attempts; found from the end, block by block."""
    if count <= 0:
        return _end(logs)
    position: Position | None = None
    for attempt in sorted(logs, reverse=True):
        offset, found = _lines_back(logs[attempt], count)
        position = Position(attempt, offset)
        count -= found
        if count <= 0:
            break
    return position


def _end(logs: dict[int, Path]) -> Position | None:
    if not logs:
        return None
    attempt = max(logs)
    return Position(attempt, logs[attempt].stat().st_size)


def _lines_back(path: Path, count: int) -> tuple[int, int]:
    """The offset at which the last `count` lines of a file begin, and how many lines there are from it on."""
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return 0, 0
    try:
        size = os.fstat(fd).st_size
        if not size:
            return 0, 0
        found = 0 if os.pread(fd, 1, size - 1) == b"\n" else 1  # a last line without its end is one too
        for start, end in reversed(list(_data(fd, 0, size))):
            while end > start:
                begin = max(start, end - _BLOCK)
                block = os.pread(fd, end - begin, begin)
                at = len(block)
                while (at := block.rfind(b"\n", 0, at)) >= 0:
                    if found == count:
                        return begin + at + 1, count
                    found += 1
                end = begin
        return 0, found
    finally:
        os.close(fd)


class Collapser:
    """Takes bytes as they come and gives lines, each as a terminal would leave it after carriage returns."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        # A bar may be redrawn for hours without a line's end: only its last state is worth keeping.
        self._rest = _kept(rest) if b"\r" in rest else rest
        shown = [collapse(line) for line in lines]
        if len(self._rest) > _LONGEST_LINE:
            shown.append(collapse(self._rest))
            self._rest = b""
        return shown

    @property
    def unfinished(self) -> bytes:
        """The line in progress, as it looks now."""
        return collapse(self._rest)

    def flush(self) -> list[bytes]:
        """The line in progress, where there is one, because nothing more will come of it."""
        rest, self._rest = collapse(self._rest), b""
        return [rest] if rest else []


def collapse(line: bytes) -> bytes:
    """What is left to be seen of a line in which carriage returns overwrite what was before."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def _kept(rest: bytes) -> bytes:
    tail = rest.rsplit(b"\r", 1)[1]
    return tail or collapse(rest) + b"\r"
