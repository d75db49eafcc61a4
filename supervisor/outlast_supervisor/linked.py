"""Generations that share files by hard links: what happens to one of them is seen at the others.

A verification is remembered by inode, ctime and size. A link or a deletion changes the ctime of what is shared, and
nothing else of it; a file that is bad is so in each generation that has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from outlast_jobs.hardlink import Stamp
from outlast_jobs.look import FileStats, Finding, Verdict, look

Remembered = MutableMapping[str, FileStats]
"""Generation -> what its full verification is remembered by."""
Sharing = Mapping[str, Mapping[str, Stamp]]
"""Generation -> those of its files that others have as well."""


def with_it(remembered: Remembered, finding: Finding, run_id: str) -> Iterator[Finding]:
    """The others that are verified by this finding, which read what they share, and by what was remembered of them."""
    if finding.index is None or not _shares(finding.path, finding.stats):
        return
    read = {
        finding.stats[member][0]: (finding.stats[member], entry)
        for member, entry in finding.index.files.items()
        if member in finding.stats
    }
    for name, known in list(remembered.items()):
        shared = {member: read[stat[0]] for member, stat in known.items() if stat[0] in read}
        if name == finding.path.name or all(known[member] == stat for member, (stat, _) in shared.items()):
            continue
        wanted = {**known, **{member: stat for member, (stat, _) in shared.items()}}
        other = look(finding.path.with_name(name), run_id, full=False, remembered=wanted)
        files = other.index.files if other.index is not None else {}
        same = all(files.get(member) == entry for member, (_, entry) in shared.items())
        if other.verdict is Verdict.VERIFIED and other.full and same:
            yield other


def doubt(remembered: Remembered, path: Path) -> None:
    """Something in this generation is bad: forget that others with a file of it were verified."""
    inodes = {found.st_ino for found in _files(path).values() if found.st_nlink > 1}
    for name, known in list(remembered.items()):
        if name != path.name and any(stat[0] in inodes for stat in known.values()):
            del remembered[name]


def sharing(remembered: Remembered, checkpoints: Path, going: Sequence[str]) -> Sharing:
    """What stays and shares files with what will be deleted, and is known to be as it was verified."""
    inodes = {
        found.st_ino for name in going for found in _files(checkpoints / name).values() if found.st_nlink > 1
    }
    staying: dict[str, dict[str, Stamp]] = {}
    for name, known in remembered.items() if inodes else ():
        if name in going or not any(stat[0] in inodes for stat in known.values()):
            continue
        files = _files(checkpoints / name)
        if {member: _stat(found) for member, found in files.items() if member in known} == known:
            staying[name] = {m: Stamp.of(f) for m, f in files.items() if f.st_ino in inodes and m in known}
    return staying


def same_as_before(
    remembered: Remembered, checkpoints: Path, before: Sharing
) -> Iterator[tuple[str, FileStats]]:
    """Of these the ones of which only a name was deleted elsewhere, with what they are remembered by now."""
    for name, stamps in before.items():
        files = _files(checkpoints / name)
        now = {member: _stat(found) for member, found in files.items() if member in remembered[name]}
        same = all(member in files and Stamp.of(files[member]) == stamp for member, stamp in stamps.items())
        others = {m: s for m, s in remembered[name].items() if m not in stamps}
        if same and {m: s for m, s in now.items() if m not in stamps} == others:
            yield name, now


def _shares(path: Path, stats: FileStats) -> bool:
    return any(found.st_nlink > 1 for member, found in _files(path).items() if member in stats)


def _files(path: Path) -> dict[str, os.stat_result]:
    """What lies in a folder now; nothing where it can't be looked at, of which nothing follows then."""
    try:
        return {name: os.stat(path / name, follow_symlinks=False) for name in os.listdir(path)}
    except OSError:
        return {}


def _stat(found: os.stat_result) -> list[int]:
    return [found.st_ino, found.st_ctime_ns, found.st_size]
