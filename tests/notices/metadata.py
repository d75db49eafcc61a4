"""A cloud's metadata service on loopback, which answers as the vendors document it and can be made to misbehave."""

from __future__ import annotations

import datetime
import email.utils
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents"
OWN_NAME = "/metadata/instance/compute/name"


class Metadata:
    """What the service says at each path, and what it was asked. ``say`` changes an answer; None is a 404."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[str, Any] = {PREEMPTED: "FALSE", MAINTENANCE: "NONE", EVENTS: {"Events": []}}
        self.values[OWN_NAME] = "vm-1"
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.tokens: set[str] = set()
        self.mode = ""  # hang, drip, garbage, huge, redirect, error
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.up()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """What makes outlast ask here, and often; the proxy is one that nobody must use."""
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.base,
            "GCE_METADATA_HOST": f"127.0.0.1:{self.port}",
            "OUTLAST_AZURE_METADATA": self.base,
            "OUTLAST_NOTICES_EVERY": "0.05",
            "http_proxy": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "no_proxy": "",
        }

    def say(self, path: str, value: Any) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def misbehave(self, mode: str) -> None:
        with self.changed:
            self.mode = mode
            self.changed.notify_all()

    def forget_tokens(self) -> None:
        with self.changed:
            self.tokens.clear()

    def count(self, path: str, method: str = "GET") -> int:
        return sum(1 for how, where, _ in list(self.asked) if (how, urlsplit(where).path) == (method, path))

    def up(self) -> None:
        """Start to listen, at the same port as before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        """Nobody listens any more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self.changed:
            self.changed.notify_all()


@contextmanager
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    try:
        yield service
    finally:
        service.misbehave("")
        service.down()


def iso(seconds: float) -> str:
    """So many seconds from now as AWS writes times."""
    when = datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def event(kind: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    """An Azure event; without seconds it has begun, and names no time."""
    return {
        "EventId": secrets.token_hex(4),
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["vm-1"],
        "EventStatus": "Scheduled" if seconds is not None else "Started",
        "NotBefore": email.utils.formatdate(time.time() + seconds, usegmt=True)
        if seconds is not None
        else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


def _handler(service: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            service.asked.append(("PUT", self.path, dict(self.headers)))
            if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
                self._answer(400, b"")
                return
            with service.changed:
                token = secrets.token_urlsafe(16)
                service.tokens.add(token)
            self._answer(200, token.encode())

        def do_GET(self) -> None:
            service.asked.append(("GET", self.path, dict(self.headers)))
            if service.mode and self._misbehave(service.mode):
                return
            parts = urlsplit(self.path)
            if parts.path.startswith("/latest/"):
                self._aws(parts.path)
            elif parts.path.startswith("/computeMetadata/"):
                self._gce(parts.path, parse_qs(parts.query))
            else:
                self._azure(parts.path, parse_qs(parts.query))

        def _aws(self, path: str) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") not in service.tokens:
                self._answer(401, b"")
            else:
                self._value(path)

        def _gce(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata-Flavor") != "Google":
                self._answer(403, b"")
                return
            if query.get("wait_for_change") == ["true"]:
                last, limit = query["last_etag"][0], float(query["timeout_sec"][0])
                with service.changed:
                    moved = lambda: _etag(service.values[path]) != last or service.mode  # noqa: E731
                    service.changed.wait_for(moved, limit)
            self._value(path)

        def _azure(self, path: str, query: dict[str, list[str]]) -> None:
            if self.headers.get("Metadata") != "true" or "api-version" not in query:
                self._answer(400, b'{"error": "Bad request"}')
            else:
                self._value(path)

        def _value(self, path: str) -> None:
            value = service.values.get(path)
            if value is None:
                self._answer(404, b"<html>not found</html>")
            else:
                body = value if isinstance(value, str) else json.dumps(value)
                self._answer(200, body.encode(), ETag=_etag(value))

        def _misbehave(self, mode: str) -> bool:
            if mode == "hang":
                with service.changed:
                    service.changed.wait_for(lambda: service.mode != "hang", 60)
            elif mode == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while service.mode == "drip":
                    try:
                        self.wfile.write(b" ")
                    except OSError:
                        break
                    time.sleep(0.01)
            elif mode == "garbage":
                self.wfile.write(b"\x00\xff\xfe nothing of HTTP\r\n\r\n")
            elif mode == "no json":
                self._answer(200, b"\xff<html>{[")
            elif mode == "other json":
                self._answer(200, b'[1, {"Events": "none"}]')
            elif mode == "huge":
                self._answer(200, b" " * (1 << 20))
            elif mode == "redirect":
                self._answer(302, b"", Location=f"{service.base}{self.path}&moved")
            elif mode == "error":
                self._answer(503, b"try again")
            self.close_connection = True
            return True

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def _etag(value: object) -> str:
    return f"{hash(str(value)) & 0xFFFFFFFF:08x}"
