"""Verification over a run's checkpoints: what is there, what may be resumed from, what is set aside."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from outlast_jobs import durable
from outlast_jobs.errors import Unreadable
from outlast_jobs.generation import GenerationName
from outlast_jobs.look import FileStats, Finding, Verdict, look, said, stats_of

__all__ = [
    "Choice",
    "FileStats",
    "Finding",
    "Verdict",
    "look",
    "newest_usable",
    "quarantine",
    "scan",
    "set_aside",
    "stats_of",
]

_SET_ASIDE = re.compile(r"(.+)\.corrupt-[1-9][0-9]*")


class Choice(Struct, frozen=True):
    """What a start may resume from, and everything that was looked at on the way there."""

    chosen: Finding | None
    tried: tuple[Finding, ...]  # newest first; ``chosen`` is the last of them
    set_aside: tuple[Path, ...]  # generations that earlier verifications renamed
    skipped: tuple[Path, ...] = ()

    @property
    def from_zero(self) -> bool:
        """True where nothing was ever sealed. Otherwise no choice means that the run must not start."""
        return not (self.chosen or self.tried or self.set_aside or self.skipped)


def scan(checkpoints: Path) -> list[Path]:
    """Everything that is called as a generation is, newest first; what it is, ``look`` says.

    A symbolic link of such a name is listed too, so that it is found out and not just overlooked.
    """
    named = [(name, entry) for entry in _entries(checkpoints) if (name := GenerationName.parse(entry))]
    named.sort(key=lambda found: (found[0].attempt, found[0].step, found[0].final), reverse=True)
    return [checkpoints / entry for _, entry in named]


def set_aside(checkpoints: Path) -> list[Path]:
    """What earlier verifications renamed, in the order of the names."""
    matches = ((entry, _SET_ASIDE.fullmatch(entry)) for entry in sorted(_entries(checkpoints)))
    return [checkpoints / entry for entry, match in matches if match and GenerationName.parse(match[1])]


def newest_usable(
    checkpoints: Path,
    run_id: str | None,
    remembered: Mapping[str, Mapping[str, Sequence[int]]],
    *,
    skip: Collection[str] = (),
    full: bool = True,
    healthy_only: bool = False,
) -> Choice:
    """Look from the newest to the oldest and stop at the first that is good. Names in ``skip`` are not tried.

    ``remembered`` maps generation names to their stats. With ``healthy_only`` a good one that is not healthy
    is listed among the tried but not chosen.
    """
    tried: list[Finding] = []
    skipped: list[Path] = []
    chosen: Finding | None = None
    for path in scan(checkpoints):
        if path.name in skip:
            skipped.append(path)
            continue
        finding = look(path, run_id, full=full, remembered=remembered.get(path.name))
        tried.append(finding)
        good = finding.verdict is Verdict.VERIFIED
        if good and (not healthy_only or (finding.index is not None and finding.index.healthy)):
            chosen = finding
            break
    return Choice(chosen, tuple(tried), tuple(set_aside(checkpoints)), tuple(skipped))


def quarantine(path: Path, reason: str) -> Path:
    """Rename a generation to the first free ``NAME.corrupt-N``. The lock holder only, who journals why."""
    if not reason:
        raise ValueError(f"{path.name!r} can't be set aside without a reason")
    number = 1
    while True:
        target = path.with_name(f"{path.name}.corrupt-{number}")
        try:
            durable.publish_dir(path, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            number += 1
        else:
            return target


def _entries(checkpoints: Path) -> list[str]:
    try:
        return os.listdir(checkpoints)
    except FileNotFoundError:
        raise  # a missing folder is not an empty one: what was sealed may be on a disk not mounted now
    except OSError as error:
        raise Unreadable(
            error.errno, f"can't list the generations: {said(error)}", str(checkpoints)
        ) from error
