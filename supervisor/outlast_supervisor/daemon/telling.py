"""What the daemon says: a line an event on stderr, or a JSON object a line on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Protocol

from ..outlet import Outlet

LOUD = ("refused", "failed", "trouble", "lost")
"""Events that are errors, which --quiet leaves in."""

_HOLD_BACK = 10_000  # lines kept while nobody reads


class Tell(Protocol):
    """How the parts of the daemon speak."""

    def __call__(self, event: str, file: str, text: str, **more: object) -> None: ...


class Teller:
    """Speaks to whoever started the daemon; that nobody listens, or no more, changes nothing and holds nothing up."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet, self._json = quiet, as_json
        stream = sys.stdout if as_json else sys.stderr
        self._encoding = stream.encoding or "utf-8"
        self._outlet = Outlet(stream.fileno(), _HOLD_BACK)
        self._lost = 0

    def __call__(self, event: str, file: str, text: str, **more: object) -> None:
        """Say one event; ``file`` is empty where it is about the whole folder."""
        if self._quiet and event not in LOUD:
            return
        if self._lost and self._write(
            "trouble", "", f"{self._lost} events were not told: nobody was reading", {}
        ):
            self._lost = 0
        if not self._write(event, file, text, more):
            self._lost += 1

    def close(self) -> None:
        """Wait a moment for what was said."""
        self._outlet.close()

    def _write(self, event: str, file: str, text: str, more: Mapping[str, object]) -> bool:
        if self._json:
            told = {"at": time.time(), "event": event, "file": file, "text": text, **more}
            line = json.dumps(told, ensure_ascii=False)
        else:
            about = f"{file}: " if file else ""
            mark = "error: " if event in LOUD else ""
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {mark}{about}{event}: {text}"
        return self._outlet.write(f"{line}\n".encode(self._encoding, "backslashreplace"))
