"""A line of the doctor's answer, and what all lines together come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from outlast_jobs.contract import Answer

Level = Literal["ok", "warning", "failure", "undecided"]


class Line(Struct, frozen=True):
    """One check: what it is about, what was found, and what to do about it where it is not well."""

    level: Level
    check: str
    text: str
    cure: str = ""


def ok(check: str, text: str) -> Line:
    """All is well."""
    return Line("ok", check, text)


def warning(check: str, text: str, cure: str = "") -> Line:
    """The run works, and something of what is promised may not hold."""
    return Line("warning", check, text, cure)


def failure(check: str, text: str, cure: str) -> Line:
    """The run will not start, or will lose work."""
    return Line("failure", check, text, cure)


def undecided(check: str, text: str, cure: str = "") -> Line:
    """It could not be looked at, and it may be a failure."""
    return Line("undecided", check, text, cure)


def answer(lines: Iterable[Line]) -> Answer:
    """One failure is enough; without one, what could not be decided leaves the whole undecided."""
    levels = {line.level for line in lines}
    if "failure" in levels:
        return Answer.DID_NOT_HOLD
    return Answer.UNDECIDED if "undecided" in levels else Answer.HELD
