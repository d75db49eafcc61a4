"""Waiting for a condition with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
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
