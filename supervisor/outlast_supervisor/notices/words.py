"""What is announced for this machine, what of it is news, and the lines in which the child tells it."""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

LONGEST = 300  # characters of a text that came from outside: a line must fit into a pipe's atomic write


class End(Struct, frozen=True):
    """The machine will be taken away. ``key`` is the same as long as the same thing is announced."""

    key: str
    text: str
    left: float  # seconds from the answer on
    guessed: bool = False  # the answer names no instant; this is the shortest time that the vendor promises


class Save(Struct, frozen=True):
    """The machine is at risk, or will stand still, and no end is named: a save is worth its cost."""

    key: str
    text: str


Found = tuple[End | Save, ...]


class Told(Struct, frozen=True, omit_defaults=True):
    """A line from the child to the supervisor."""

    kind: Literal["end", "none", "save", "trouble", "well"]
    source: str
    text: str = ""
    key: str = ""
    at: float = 0.0  # of an end: seconds of the monotonic clock, which all processes of a machine share
    guessed: bool = False


class Unreadable(Exception):
    """No answer, or one that says nothing: what was known before still holds. The text says why."""


_TOLD = msgspec.json.Decoder(Told)


def encode(told: Told) -> bytes:
    """The line, with its end."""
    return msgspec.json.encode(told) + b"\n"


def decode(line: bytes) -> Told | None:
    """What a line says; None where it says nothing that is known."""
    try:
        return _TOLD.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def news(source: str, before: Found, found: Found, now: float) -> tuple[Told, ...]:
    """What to tell, given what was announced at the look before and is now. ``now`` is monotonic seconds."""
    told: list[Told] = []
    known = {item.key for item in before}
    told += [Told("save", source, i.text, i.key) for i in found if isinstance(i, Save) and i.key not in known]
    last, nearest = _nearest(before), _nearest(found)
    if nearest is None:
        if last is not None:
            told.append(Told("none", source))
    elif last is None or last.key != nearest.key:
        told.append(Told("end", source, nearest.text, nearest.key, now + nearest.left, nearest.guessed))
    return tuple(told)


def _nearest(found: Iterable[End | Save]) -> End | None:
    return min((item for item in found if isinstance(item, End)), key=lambda end: end.left, default=None)


def instant(text: object) -> float | None:
    """Unix seconds of a time in ISO 8601 (AWS) or as in mail and HTTP headers (Azure); None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        when = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError):
            return None
    if when.tzinfo is None:  # both vendors tell UTC
        when = when.replace(tzinfo=datetime.UTC)
    try:
        return when.timestamp()
    except (ValueError, OverflowError):
        return None


def end(key: str, text: str, when: object, now: float, least: float) -> End:
    """An end at a time as written; ``now`` is the service's own clock, ``least`` what to take without a time."""
    at = instant(when)
    if at is None:
        return End(key, clipped(f"{text}, at an unknown time"), least, guessed=True)
    return End(key, clipped(text), at - now)


def clipped(text: object) -> str:
    """A text from outside as one short line."""
    return " ".join(str(text).split())[:LONGEST]
