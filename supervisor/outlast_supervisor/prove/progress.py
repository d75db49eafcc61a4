"""What a person sees while a proof runs: which legs are under way, and how far."""

from __future__ import annotations

import sys
import time

from .model import Leg

_EVERY = 10.0  # seconds between two lines where nobody watches a terminal
_LIVE = 0.25


class Progress:
    """Lines on stderr; on a terminal the last one is renewed in place."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._active: dict[str, tuple[int, int | None]] = {}
        self._done = 0
        self._total = 0
        self._drawn = 0.0
        self._width = 0

    def plan(self, legs: int) -> None:
        """So many launches are to come in addition."""
        self._total += legs

    def told(self, leg: Leg, step: int | None) -> None:
        """A leg begins (None), or has done a step."""
        if step is None:
            self.say(f"{leg.name} begins ({len(self._active) + self._done + 1} of {self._total})")
        self._active[leg.name] = (step or 0, leg.stop_at)
        now = time.monotonic()
        if now - self._drawn >= (_LIVE if self._terminal else _EVERY):
            self._drawn = now
            self._live()

    def ended(self, leg: Leg) -> None:
        """A leg is over."""
        self._done += self._active.pop(leg.name, None) is not None

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        clear = "\r" + " " * self._width + "\r" if self._width else ""
        self._width = 0
        print(f"{clear}outlast prove: {text}", file=sys.stderr, flush=True)

    def _live(self) -> None:
        legs = [f"{name} {step}/{last or '?'}" for name, (step, last) in self._active.items()]
        text = (
            f"{time.monotonic() - self._began:.0f} s, {self._done} of {self._total} done: {', '.join(legs)}"
        )
        if self._quiet:
            return
        if not self._terminal:
            print(f"outlast prove: {text}", file=sys.stderr, flush=True)
            return
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(text)
