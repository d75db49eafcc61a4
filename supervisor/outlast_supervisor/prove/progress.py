"""What a person sees while a proof runs: which legs are under way, and how far."""

from __future__ import annotations

import time

from outlast_supervisor.telling import Teller

from .model import Leg


class Progress:
    """Which legs began and ended, told as they do."""

    def __init__(self, *, quiet: bool) -> None:
        self._teller = Teller("prove", quiet=quiet)
        self._began = time.monotonic()
        self._active: dict[str, tuple[int, int | None]] = {}
        self._done = 0
        self._total = 0

    def plan(self, legs: int) -> None:
        """So many launches are to come in addition."""
        self._total += legs

    def told(self, leg: Leg, step: int | None) -> None:
        """A leg begins (None), or has done a step."""
        if step is None:
            self.say(f"{leg.name} begins ({len(self._active) + self._done + 1} of {self._total})")
        self._active[leg.name] = (step or 0, leg.stop_at)
        if self._teller.due():
            self._live()

    def ended(self, leg: Leg) -> None:
        """A leg is over."""
        self._done += self._active.pop(leg.name, None) is not None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._teller.say(text)

    def close(self) -> None:
        """Nothing more comes."""
        self._teller.clear()

    def _live(self) -> None:
        legs = [f"{name} {step}/{last or '?'}" for name, (step, last) in self._active.items()]
        self._teller.live(
            f"{time.monotonic() - self._began:.0f} s, {self._done} of {self._total} done: {', '.join(legs)}"
        )
