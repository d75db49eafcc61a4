"""What the supervisor tells systemd, where systemd started it (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

from .states import Ending, State, Stopping

MINE = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "FDSTORE",
    "JOURNAL_STREAM",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "SYSTEMD_EXEC_PID",
)
"""Variables by which systemd speaks to this process alone; a child that inherited them would answer for us."""

LAST_ACTS = 30.0
"""Seconds for what follows the end of a worker: its traces, the journal, a hook, the last status."""


class ServiceManager:
    """Sends to the socket that ``NOTIFY_SOCKET`` named when this process began; silent without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        usec = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() and mine and self._address else None
        self._ready = False
        self._bound: float | None = None

    def status(self, line: str) -> None:
        """Tell how it goes. The first time this also says that the start is complete, and only then: READY
        would end a reload that is under way."""
        status = f"STATUS={' '.join(line.split())}"
        self._ready = self._tell(status if self._ready else f"READY=1\n{status}") or self._ready

    def alive(self) -> None:
        """Feed the watchdog."""
        self._tell("WATCHDOG=1")

    def reloading(self) -> None:
        """The job file is being read again; `reloaded` ends that."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """The job file was read again, or is not taken."""
        if self._ready:
            self._tell("READY=1")

    def leaving(self, state: State, now: float) -> None:
        """Have a stop wait as long as this state may take: the job's grace may have changed since the unit
        was written, and what a wrapper leaves behind has a grace of its own."""
        bound = state.kill_at if isinstance(state, (Stopping, Ending)) else None
        if bound is not None and bound != self._bound:
            self._bound = bound
            self._tell(f"EXTEND_TIMEOUT_USEC={int((max(0.0, bound - now) + LAST_ACTS) * 1e6)}")

    def stopping(self) -> None:
        """This process is about to end."""
        self._tell("STOPPING=1")

    def stand_still(self) -> None:
        """This process is about to be stopped on purpose: its silence means nothing."""
        if self.watchdog_seconds is not None:
            self._tell("WATCHDOG_USEC=0")

    def go_on(self) -> None:
        """It runs again, and the watchdog counts again."""
        if self.watchdog_seconds is not None:
            self._tell(f"WATCHDOG_USEC={int(self.watchdog_seconds * 1e6)}\nWATCHDOG=1")

    def _tell(self, text: str) -> bool:
        """Send one notification; False where it is lost, since a loop that has signals to answer waits for no
        service manager."""
        if not self._address:
            return True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.sendto(text.encode(errors="replace"), self._address)
            return True
        return False
