"""The scheduler around a running supervisor: outside of any there is nothing to ask and nothing to do at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from .. import events as ev
from ..deadlines import Deadlines
from ..launch import Launcher
from ..loop import Loop
from ..states import Ledger


class Wires(Struct):
    """What a watch is given of the session that it belongs to."""

    loop: Loop
    deadlines: Deadlines
    launcher: Launcher
    note: Callable[[str, dict[str, Any]], None]
    tell: Callable[[str, str], None]
    mark: str  # in the environment of processes that belong to no attempt


class Outside:
    """No scheduler that could be asked."""

    job = ""
    """In words for people, which job this is."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires

    @property
    def requeue(self) -> str:
        """In words for people, what becomes of the job after the end."""
        return ""

    def begin(self) -> None:
        """The loop is about to start; what the environment says is known from here on."""

    def ask(self) -> None:
        """Ask for the end time when there is time for it."""

    def warned(self, source: str) -> None:
        """The cluster's warning signal came."""
        self.wires.loop.post(ev.Warned(source))

    def heard(self, number: int) -> None:
        """Any signal came."""

    def resumed(self) -> None:
        """Time stood still for us, or may have: what was known of the end may be long past."""

    def jumped(self) -> None:
        """The wall clock was set."""

    def child(self, pid: int, status: int) -> bool:
        """A child ended; whether it was one of ours."""
        return False

    def idle(self, now: float) -> None:
        """Do what is due."""

    def due(self) -> float | None:
        """When something is due next, on the monotonic clock."""
        return None

    def ending(self, code: int, ledger: Ledger) -> None:
        """The supervisor ends with this code, as soon as ``may_go`` says so."""

    def close(self) -> None:
        """Leave nothing behind."""

    def may_go(self, now: float) -> bool:
        """Asked when all else is done and on disk; the last act is ours."""
        return True
