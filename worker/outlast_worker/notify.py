"""Telling the supervisor: systemd's datagram protocol, which never blocks the training and never fails it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

from outlast_jobs.contract import Env

LIMIT = 4096
"""Bytes of one datagram, at most; longer values are cut."""
PERIOD = 0.1
"""Seconds between two notifications of the kind that may be lost: ten a second at most."""
AUDIT = "outlast.said"
"""The audit event (PEP 578) of each notification, sent or not: by it `outlast drill` strikes at exact moments."""
PATIENCE = 1.0
"""Seconds for which an important notification is tried again while the supervisor's queue is full."""

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})
# The socket's file goes with its folder where a supervisor ended in order, and stays where it was killed.
_REFUSED = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTDIR, errno.ENOTCONN})


class Notifier:
    """Sends notifications to one datagram socket; without a socket it does nothing.

    ``broken`` says that the last send found nobody at the other end. That alone doesn't mean a dead
    supervisor: see `outlast_worker.guardian`.
    """

    def __init__(self, address: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.broken = False
        self.lost = 0
        """Notifications that could not be delivered."""
        self._clock = clock
        self._owner = os.getpid()
        self._last_frequent = float("-inf")
        self._stuck = False
        self._connected = False
        self._address = _socket_address(address) if address else None
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Notifier:
        """The notifier for the socket that the environment names."""
        return cls(environ.get(Env.NOTIFY_SOCKET) or None)

    def send(self, fields: Mapping[str, object], *, important: bool = False, fd: int | None = None) -> None:
        """Send these fields in one datagram; an important one is tried again while the queue is full.

        With ``fd`` that descriptor goes along.
        """
        sys.audit(AUDIT, fields)
        # One full second is lost to a supervisor that reads nothing, not one with every notification.
        self._deliver(encode(fields), PATIENCE if important and not self._stuck else 0.0, fd)

    def send_often(self, fields: Mapping[str, object]) -> bool:
        """Send, unless one of this kind was sent less than `PERIOD` ago; says whether it was tried."""
        sys.audit(AUDIT, fields)
        now = self._clock()
        if now - self._last_frequent < PERIOD:
            return False
        self._last_frequent = now
        self._deliver(encode(fields), 0.0)
        return True

    def probe(self) -> bool:
        """Whether somebody is at the other end. Sends an empty status, which changes nothing there."""
        if self._socket is None:
            return False
        self._deliver(b"X_OUTLAST_PROBE=1", 0.0)
        return not self.broken

    def own(self) -> None:
        """Speak for this process from here on, and for no other: it may have been forked since this was made."""
        self._owner = os.getpid()

    def close(self) -> None:
        """Close the socket; later sends do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _deliver(self, message: bytes, patience: float, fd: int | None = None) -> None:
        # A forked child would speak in the trainer's name: the receiver tells senders apart by their process.
        if self._socket is None or self._address is None or os.getpid() != self._owner:
            return
        give_up = self._clock() + patience
        pause = 0.001
        while (code := self._try(message, fd)) in _FULL and self._clock() < give_up:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        self._stuck = code in _FULL and (patience > 0 or self._stuck)
        self.broken = code in _REFUSED
        self.lost += code != 0

    def _try(self, message: bytes, fd: int | None) -> int:
        """Send once; 0 or the errno.

        The address is looked up once: what is connected stays so when the socket's file is removed, as at the user's
        last logout, which takes $XDG_RUNTIME_DIR, and when somebody cleans /tmp.
        """
        if self._socket is None or self._address is None:
            return errno.EBADF
        try:
            if not self._connected:
                self._socket.connect(self._address)
                self._connected = True
            if fd is None:
                self._socket.send(message, socket.MSG_NOSIGNAL)
            else:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))
                self._socket.sendmsg([message], [rights], socket.MSG_NOSIGNAL)
        except OSError as error:
            code = error.errno or errno.EIO
            self._connected = self._connected and code not in _REFUSED
            return code
        return 0


def encode(fields: Mapping[str, object], limit: int = LIMIT) -> bytes:
    """The datagram: newline-separated KEY=VALUE. A line end in a value becomes a blank; a long one is cut."""
    lines = [f"{key}={_one_line(value)}".encode("utf-8", "replace") for key, value in fields.items()]
    excess = sum(map(len, lines)) + len(lines) - 1 - limit
    if excess > 0:
        longest = max(range(len(lines)), key=lambda place: len(lines[place]))
        lines[longest] = _cut(lines[longest], max(len(lines[longest]) - excess, 0))
    return b"\n".join(lines)[:limit]


def _one_line(value: object) -> str:
    return str(value).replace("\r", " ").replace("\n", " ").replace("\0", " ")


def _cut(line: bytes, length: int) -> bytes:
    """The first bytes, without half a character at the end."""
    return line[:length].decode("utf-8", "ignore").encode()


def _socket_address(text: str) -> str:
    """The address as the kernel takes it: a leading ``@`` stands for the abstract namespace."""
    return "\0" + text[1:] if text.startswith("@") else text
