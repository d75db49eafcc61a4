"""What the supervisor makes of the lines that a watch writes."""

from __future__ import annotations

import time
from typing import Any

from outlast_supervisor.notices.watchers import EARLY, Watchers
from outlast_supervisor.notices.words import Told


class Heard:
    """Watchers without children, and what they hand on."""

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self.posts: list[Any] = []
        self.watchers = Watchers(
            lambda fd, callback: None,
            lambda fd: None,
            self._know,
            self.posts.append,
            lambda text, level: None,
        )

    def _know(self, source: str, at: float | None) -> None:
        if at is None:
            self.known.pop(source, None)
        else:
            self.known[source] = at

    def hear(
        self, kind: Any, text: str = "", at: float = 0.0, *, guessed: bool = False, key: str = ""
    ) -> None:
        self.watchers._told("aws", Told(kind, "s", text, key, at, guessed))


def test_a_guessed_end_comes_no_later_for_being_told_again() -> None:
    """A watch that is started anew guesses from its own first look; what was known from the first one stays."""
    heard, now = Heard(), time.monotonic()
    heard.hear("end", "preempted", now + 30, guessed=True)
    heard.hear("end", "preempted", now + 90, guessed=True)
    assert heard.known == {"s: preempted": now + 30 - EARLY}
    heard.hear("end", "terminate", now + 100)
    assert heard.known == {"s: terminate": now + 100 - EARLY}


def test_one_source_has_one_end() -> None:
    """Another end takes the place of the one before; taken back, or named no longer in the job, none is left."""
    heard = Heard()
    heard.hear("end", "a", 5.0)
    heard.hear("end", "b", 9.0)
    assert heard.known == {"s: b": 9.0 - EARLY}
    heard.hear("none")
    assert heard.known == {}
    heard.hear("end", "c", 7.0)
    heard.watchers.want((), 0.0)
    assert heard.known == {}


def test_a_save_is_asked_for_once() -> None:
    """The same recommendation told twice is one save, another one a second."""
    heard = Heard()
    for key in ("1", "1", "2"):
        heard.hear("save", "risk", key=key)
    assert len(heard.posts) == 2
