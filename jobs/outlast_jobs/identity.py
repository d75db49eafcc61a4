"""Who a process is: its pid, when the kernel started it, and in which boot; a pid alone names nobody."""

from __future__ import annotations

import errno
import os
import socket
from functools import cache
from pathlib import Path

from msgspec import Struct

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = "unknown"  # the boot, where a sandbox hides its id
_DEAD_STATES = frozenset("ZXx")
_BLIND = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOMEM])


@cache
def boot_id() -> str:
    """The id of this boot, as a UUID; another one after every reboot of this host. "unknown" where it is hidden."""
    try:
        return _BOOT_ID.read_text(encoding="ascii", errors="replace").strip() or _UNKNOWN
    except OSError as error:
        if is_blind(error):
            raise
        return _UNKNOWN


def is_this_boot(boot: str) -> bool:
    """Whether a recorded boot is known to be the one of this host now."""
    return boot == boot_id() != _UNKNOWN


def hostname() -> str:
    """The name of this host, as people and journals call it."""
    return socket.gethostname() or "localhost"


class ProcessIdentity(Struct, frozen=True):
    """One process, told apart from every later owner of its pid."""

    pid: int
    start: int
    """Clock ticks after boot at which the kernel started it."""
    boot: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start}:{self.boot}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        """The identity that `str` wrote; ValueError for anything else."""
        parts = text.split(":")
        numbers = [part for part in parts[:2] if part.isascii() and part.isdigit()]
        if len(parts) != 3 or len(numbers) != 2 or not parts[2] or int(parts[0]) < 1:
            raise ValueError(f'cannot read the process identity "{text[:200]}": expected "PID:START:BOOT"')
        return cls(int(parts[0]), int(parts[1]), parts[2])

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The identity of the calling process."""
        pid = os.getpid()
        _, start = _state_and_start(pid)
        return cls(pid, start, boot_id())

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the process which has this pid now; None where none has, or only a zombie.

        None as well where that cannot be looked at.
        """
        try:
            return cls.seen(pid)
        except OSError:
            return None

    @classmethod
    def of_child(cls, pid: int) -> ProcessIdentity:
        """That of a child not reaped yet, whose pid is nobody else's; one that has ended already has no start."""
        return cls.of(pid) or cls(pid, 0, "")

    @classmethod
    def seen(cls, pid: int) -> ProcessIdentity | None:
        """The same, where much hangs on it: OSError where nothing can be opened, which says nothing of a process."""
        try:
            state, start = _state_and_start(pid)
        except OSError as error:
            if is_blind(error):
                raise
            return None
        return None if state in _DEAD_STATES else cls(pid, start, boot_id())

    def alive(self) -> bool:
        """Whether this very process still runs on this host; a zombie does not.

        Only an answer about this boot of this host: ask nothing about another host's process.
        """
        return ProcessIdentity.of(self.pid) == self


def is_blind(error: OSError) -> bool:
    """Whether nothing could be looked at (too few descriptors or too little memory), whatever there is."""
    return error.errno in _BLIND


def _state_and_start(pid: int) -> tuple[str, int]:
    """State letter and start ticks (fields 3 and 22); OSError where the process is gone."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    # Field 2, the command's name, may hold blanks and parentheses: count from its last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    state = fields[0].decode("ascii")
    # A first thread that ended before the others looks like a zombie, and the process goes on without it.
    return "S" if state in _DEAD_STATES and int(fields[17]) > 1 else state, int(fields[19])
