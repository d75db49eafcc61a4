"""One request to a metadata service: no proxy, no redirect, a limit on time and on size."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from .words import Unreadable, clipped, instant

PATIENCE = 3.0  # seconds: a metadata service is on the same host
LARGEST = 256 << 10  # bytes: what answers more than that is no metadata service


@dataclass(frozen=True)
class Answer:
    """What a metadata service answered. ``date`` is its clock in unix seconds, where it said."""

    status: int
    body: bytes
    date: float | None
    etag: str

    @property
    def text(self) -> str:
        """The body as text, whatever it holds."""
        return self.body.decode("utf-8", "replace").strip()


@dataclass(frozen=True)
class Service:
    """A metadata service at ``http://host[:port][/prefix]``."""

    base: str

    def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", patience: float = PATIENCE
    ) -> Answer:
        """One answer, whatever its status; Unreadable where none came in ``patience`` seconds."""
        try:
            parts = urlsplit(self.base)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise Unreadable(f'"{self.base}" is no address: {error}') from None
        if parts.scheme != "http" or not host:
            raise Unreadable(f'"{self.base}" is no http address')
        connection = http.client.HTTPConnection(host, port, timeout=min(patience, PATIENCE))
        over, timer = threading.Event(), None
        try:
            connection.connect()
            connection.sock.settimeout(patience)
            # that limit counts anew with each byte, and a service that drips would hold us for ever
            timer = threading.Timer(patience, _shut, (connection.sock, over))
            timer.daemon = True
            timer.start()
            connection.request(method, parts.path.rstrip("/") + path, headers=dict(headers))
            with connection.getresponse() as response:
                body = response.read(LARGEST + 1)
            if over.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = over.is_set() or isinstance(error, TimeoutError)
            why = f"no answer in {patience:g} s" if late else clipped(error) or type(error).__name__
            raise Unreadable(f"{self.base}{path}: {why}") from None
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if len(body) > LARGEST:
            raise Unreadable(f"{self.base}{path}: an answer of more than {LARGEST} bytes")
        return Answer(
            response.status, body, instant(response.getheader("Date")), response.getheader("ETag") or ""
        )


def _shut(sock: socket.socket, over: threading.Event) -> None:
    over.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
