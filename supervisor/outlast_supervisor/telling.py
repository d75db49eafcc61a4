"""What a person sees of long work: lines on stderr that stay, and a last one that is renewed in place."""

from __future__ import annotations

import os
import sys
import time

_EVERY = 10.0  # seconds between two lines where nobody watches a terminal
_LIVE = 0.25


class Teller:
    """Lines of one command; on a terminal the last one is renewed, elsewhere it comes now and then."""

    def __init__(self, command: str, *, quiet: bool) -> None:
        self._head = f"outlast {command}: "
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._drawn = 0.0
        self._width = 0

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        self.clear()
        print(f"{self._head}{text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the renewed line away: what comes next begins a line."""
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0

    def due(self) -> bool:
        """Whether it is time to show again how far the work is."""
        now = time.monotonic()
        if now - self._drawn < (_LIVE if self._terminal else _EVERY):
            return False
        self._drawn = now
        return True

    def live(self, text: str) -> None:
        """How far the work is; the next such text takes its place."""
        if self._quiet:
            return
        if not self._terminal:
            print(f"{self._head}{text}", file=sys.stderr, flush=True)
            return
        text = _fit(text)
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(text)


def _fit(text: str) -> str:
    """As much as one line has room for: what is wrapped cannot be renewed in place."""
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        width = 80
    return text if len(text) < width else text[: width - 2] + "…"
