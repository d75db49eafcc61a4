"""What is wrong with a job file: one error with its place, what was expected and the nearest key."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
_LONGEST_QUOTE = 60


class JobFileError(ValueError):
    """A job file (or the name of a job) can't be used; a person has to change it, so retrying is no use."""

    def __init__(
        self,
        file: str,
        problem: str,
        *,
        line: int | None = None,
        key: str | None = None,
        expected: str | None = None,
        nearest: str | None = None,
    ) -> None:
        place = f"{file}:{line}" if line else file
        super().__init__(": ".join(part for part in (place, key, problem) if part))
        self.file = file
        self.line = line
        self.key = key
        self.problem = problem
        self.expected = expected
        self.nearest = nearest


def quoted(value: object) -> str:
    """A value as a message shows it: JSON, on one line, cut short."""
    import json  # only a wrong file pays for it

    text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 2] + f"…{text[-1]}"


def key_path(parent: str, key: str) -> str:
    """The path of a key below another, as a message shows it."""
    shown = key if _PLAIN_KEY.fullmatch(key) else quoted(key)
    return f"{parent}.{shown}" if parent else shown


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, if one is close enough."""
    import difflib  # only a wrong file pays for it

    known = list(known)
    found = difflib.get_close_matches(word[:100].lower(), known, n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(nearest: str | None) -> str:
    """The tail of a message that offers the nearest valid word, or nothing."""
    return f"; did you mean {quoted(nearest)}?" if nearest else ""


def listed(words: Iterable[str]) -> str:
    """Words for a sentence: "a", "b" or "c"."""
    shown = [quoted(word) for word in words]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
