"""What the daemon says: a line an event on stderr, or a JSON object a line on stdout."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Protocol

LOUD = ("refused", "failed", "trouble", "lost")
"""Events that are errors, which --quiet leaves in."""


class Tell(Protocol):
    """How the parts of the daemon speak."""

    def __call__(self, event: str, file: str, text: str, **more: object) -> None: ...


class Teller:
    """Speaks to whoever started the daemon; that nobody listens any more changes nothing."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet, self._json = quiet, as_json

    def __call__(self, event: str, file: str, text: str, **more: object) -> None:
        """Say one event; ``file`` is empty where it is about the whole folder."""
        if self._quiet and event not in LOUD:
            return
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the disk of the log is full
            if self._json:
                told = {"at": time.time(), "event": event, "file": file, "text": text, **more}
                print(json.dumps(told, ensure_ascii=False), flush=True)
            else:
                about = f"{file}: " if file else ""
                mark = "error: " if event in LOUD else ""
                moment = time.strftime("%Y-%m-%d %H:%M:%S")
                print(f"{moment} {mark}{about}{event}: {text}", file=sys.stderr, flush=True)
