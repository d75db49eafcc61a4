"""Several sources of an end time, of which the nearest counts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from outlast_supervisor import events as ev
from outlast_supervisor.deadlines import Deadlines


class Heard:
    def __init__(self) -> None:
        self.launcher: Any = SimpleNamespace(deadline=None)
        self.notes: list[tuple[Any, str]] = []
        self.posts: list[Any] = []
        self.deadlines = Deadlines(
            self.launcher, lambda _, data: self.notes.append((data["at"], data["from"])), self.posts.append
        )


def test_the_nearest_counts() -> None:
    """Of two sources the nearer one counts, whichever spoke first, and the other one when it falls away."""
    for order in (("near", "far"), ("far", "near")):
        heard = Heard()
        for name in order:
            heard.deadlines.know(name, {"near": 100.0, "far": 500.0}[name])
        assert heard.posts[-1] == ev.DeadlineKnown(100.0, "near")
        heard.deadlines.know("near", None)
        assert heard.posts[-1] == ev.DeadlineKnown(500.0, "far")
        heard.deadlines.know("far", None)
        assert heard.posts[-1] == ev.DeadlineKnown(None, "")
        assert heard.launcher.deadline is None


def test_the_journal_is_told_unix_time() -> None:
    """The launcher knows the end by the clock that nobody sets; the journal has it in unix seconds."""
    heard = Heard()
    before, end, after = time.time(), time.monotonic() + 50, time.time()
    heard.deadlines.know("a", end)
    assert heard.launcher.deadline == end
    [(told, source)] = heard.notes
    assert before + 49 < told < after + 51
    assert source == "a"


def test_the_same_answer_is_no_news() -> None:
    """A source that is asked again and says the same, or nothing as before, brings no record and no event."""
    heard = Heard()
    heard.deadlines.know("a", None)
    heard.deadlines.know("a", 100.0)
    heard.deadlines.know("a", 100.4)
    heard.deadlines.know("b", 900.0)
    assert len(heard.posts) == len(heard.notes) == 1
    heard.deadlines.know("a", 160.0)
    assert heard.posts[-1] == ev.DeadlineKnown(160.0, "a")
