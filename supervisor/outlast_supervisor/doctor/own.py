"""This process: where it was started, which signals reach it, where its output goes."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from .line import Line, ok, warning

_MOST_ABOVE = 64


class Own(Struct, frozen=True):
    """What the kernel says of us."""

    pid: int
    parent: int
    ignored: frozenset[int]  # signals
    blocked: frozenset[int]
    terminal: bool
    output: str  # file, appended, pipe, terminal, other
    above: tuple[str, ...]  # names of the processes above us, nearest first
    cgroup: str
    env: Mapping[str, str]


def look(env: Mapping[str, str]) -> Own:
    """Ask the kernel, before anything changes what it says."""
    masks = _masks()
    return Own(
        pid=os.getpid(),
        parent=os.getppid(),
        ignored=masks.get("SigIgn", frozenset()),
        blocked=masks.get("SigBlk", frozenset()),
        terminal=_terminal(),
        output=_output(),
        above=tuple(_above()),
        cgroup=_text("/proc/self/cgroup"),
        env=env,
    )


def log(own: Own) -> Iterator[Line]:
    """Whether a second start would empty the file that the messages of the first went to."""
    if own.output == "file":
        yield warning(
            "log",
            "standard output is a file that each start empties; outlast's own logs, in the run, are appended",
            "redirect with >> in place of >",
        )
    elif own.output == "appended":
        yield ok("log", "standard output is a file that is appended to")


def _masks() -> dict[str, frozenset[int]]:
    found = {}
    for line in _text("/proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key in ("SigIgn", "SigBlk"):
            bits = int(value.strip(), 16)
            found[key] = frozenset(n for n in range(1, 65) if bits >> (n - 1) & 1)
    return found


def _terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _output() -> str:
    try:
        mode = os.fstat(1).st_mode
        if stat.S_ISREG(mode):
            return "appended" if fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND else "file"
        return "terminal" if os.isatty(1) else "pipe" if stat.S_ISFIFO(mode) else "other"
    except OSError:
        return "other"


def _above() -> Iterator[str]:
    pid = os.getppid()
    for _ in range(_MOST_ABOVE):
        text = _text(f"/proc/{pid}/stat")
        if not text:
            return
        yield text[text.index("(") + 1 : text.rindex(")")]
        pid = int(text[text.rindex(")") + 2 :].split()[1])
        if pid == 0:
            return


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
