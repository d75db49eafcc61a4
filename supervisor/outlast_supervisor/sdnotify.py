"""What the supervisor tells systemd, where systemd started it (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


class ServiceManager:
    """Sends to the socket that ``NOTIFY_SOCKET`` named when this process began; silent without one."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        usec = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(usec) / 1e6 if usec.isdigit() and mine and self._address else None

    def tell(self, text: str) -> None:
        """Send one notification; a service manager that does not listen is no fault of ours."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.sendto(text.encode(errors="replace"), self._address)
