"""What a training prints: a full or dead disk under its log costs lines, never the training."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

_LOSES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})


def guard() -> None:
    """Replace the standard output and error, where they are Python's own, by ones that drop what can't be written.

    Whoever replaced them before (a notebook, a test, a logger of everything) has them as they are.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and not isinstance(stream.buffer, _Log) and _is(stream, number):
            stream.flush()
            # as Python's own under PYTHONUNBUFFERED: nothing waits in a buffer that a kill would lose
            guarded = io.TextIOWrapper(
                _Log(number),
                encoding=stream.encoding,
                errors=stream.errors,
                newline="\n",
                line_buffering=stream.line_buffering,
                write_through=True,
            )
            setattr(sys, name, guarded)


def say(text: str) -> None:
    """One line for people, into the attempt's log."""
    with contextlib.suppress(OSError, ValueError):  # a full disk under the log costs the line, not the run
        print(f"outlast: {text}", file=sys.stderr, flush=True)


class _Log(io.FileIO):
    """A descriptor that takes all it is given: what the disk does not take is counted, and told when it does again."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._lost = 0
        self._why = ""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._lost and self._pass_on(memoryview(self._note())) is None:
            self._lost = 0
        left = self._pass_on(view)
        self._lost += left or 0
        return len(view)

    def _pass_on(self, data: memoryview) -> int | None:
        """Write all of it; how much was lost, None for nothing."""
        done = 0
        try:
            while done < len(data):
                done += super().write(data[done:]) or 0
        except OSError as error:
            if error.errno not in _LOSES:
                raise
            self._why = os.strerror(error.errno)
            return len(data) - done
        return None

    def _note(self) -> bytes:
        return f"\noutlast: {self._lost} bytes of output are missing here: {self._why}\n".encode()


def _is(stream: io.TextIOWrapper, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):
        return False
