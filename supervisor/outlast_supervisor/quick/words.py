"""Read the plain command lines of `run` and `status`: whatever is not plain is for the full reader to judge."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

# The full reader, which also makes help and messages, takes as long to load as all else that a start needs.
# It has the same options; a new one that is missing here is read there.
# others of the flags are False
_UNSET: dict[str, Mapping[str, Any]] = {"run": {}, "status": {"details": None}}
_FLAGS: dict[str, Mapping[str, tuple[str, bool]]] = {
    "run": {
        "--fresh": ("fresh", True),
        "--release": ("release", True),
        "--takeover": ("takeover", True),
        "--allow-rng-loss": ("allow_rng_loss", True),
        "-v": ("verbose", True),
        "--verbose": ("verbose", True),
        "-q": ("quiet", True),
        "--quiet": ("quiet", True),
        "--json": ("as_json", True),
    },
    "status": {
        "-w": ("watch", True),
        "--watch": ("watch", True),
        "--details": ("details", True),
        "--no-details": ("details", False),
        "-q": ("quiet", True),
        "--quiet": ("quiet", True),
        "--json": ("as_json", True),
    },
}
_VALUED: dict[str, Mapping[str, str]] = {
    "run": {"--run-dir": "run_dir", "--from": "from_generation"},
    "status": {},
}


def plain(line: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The command and all its options by name; None for a line that is not plain. Looks at nothing but the words."""
    if not line or line[0] not in _FLAGS:
        return None
    name, words = line[0], list(line[1:])
    after: tuple[str, ...] = ()
    if "--" in words:
        if name != "run":
            return None
        cut = words.index("--")
        words, after = words[:cut], tuple(words[cut + 1 :])
    flags, valued = _FLAGS[name], _VALUED[name]
    options: dict[str, Any] = {option: False for option, _ in flags.values()}
    options |= {**dict.fromkeys(valued.values()), **_UNSET[name]}
    rest: list[str] = []
    while words:
        word = words.pop(0)
        long, equals, value = word.partition("=")
        if word in flags:
            option, options[option] = flags[word][0], flags[word][1]
        elif word in valued and words and not words[0].startswith("-"):
            options[valued[word]] = words.pop(0)
        elif equals and long in valued:
            options[valued[long]] = value
        elif not word or word.startswith("-"):
            return None
        else:
            rest.append(word)
    if name == "status":
        return name, options | {"runs": tuple(rest)}
    if len(rest) > 1 or not (rest or after):
        return None
    return name, options | {"job": rest[0] if rest else None, "after": after}


def can_be_folder(path: str | None) -> bool:
    """Whether a place given for a run is a folder that can be read, or nothing as yet."""
    if path is None:
        return True
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return True  # which is not looked at here
    return stat.S_ISDIR(found.st_mode) and os.access(path, os.R_OK)
