"""Waiting for a condition with a deadline, in place of sleeping and hoping; and reading what is being written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float, what: str) -> T:
    """Calls the condition until it holds and gives back its value; late, it says what was waited for."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}; last seen: {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that have come to their end, without it; none where there is no file.

    Who writes it may be in the middle of one: a line and its end are seldom written in one piece.
    """
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    return text.split("\n")[:-1]
