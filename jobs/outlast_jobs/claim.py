"""Fencing: an attempt's claim to write, which takes that right from every older attempt on any node."""

from __future__ import annotations

import os
import re
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.beneath import require_folder
from outlast_jobs.errors import Fenced
from outlast_jobs.generation import WRITING, writing_folder

_ROUNDS = 10


def claim(checkpoints: Path, attempt: int) -> list[str]:
    """Claim the run for ``attempt``, before its worker starts: only the holder of the lock does this.

    Older attempts' folders are renamed away, so that their seals fail, and emptied, so that a node which
    remembers the old folder by its handle finds nothing to rename. Returns the folders fenced off.
    Fenced if this attempt is claimed already or a newer one is: take a higher number, or stop.
    """
    mine = writing_folder(checkpoints, attempt)
    require_folder(checkpoints)  # through a link another run's claims would be taken away
    try:
        mine.mkdir()  # exclusive: of two supervisors that chose the same number, one wins here
    except FileExistsError:
        raise Fenced(f"attempt {attempt} is claimed already: {str(mine)!r} exists") from None
    # Looked at only now: a newer claim made before is seen here, and one made from now on sees ours.
    others = [name for name in _claims(checkpoints) if name != mine.name]
    newest = max(others, key=_number, default="")
    if _number(newest) > attempt:
        try:
            mine.rmdir()
        except FileNotFoundError:
            pass  # the newer claim took it away already
        raise Fenced(f"attempt {attempt} comes too late: {newest!r} shows that a newer one owns the run")
    trash = [away for name in others if (away := _take_away(checkpoints, name)) is not None]
    durable.fsync_dir(checkpoints)  # of ours and of those taken away, and before any of them is emptied
    for folder in trash:
        _empty(folder)
    return others


def newest_claim(checkpoints: Path) -> int:
    """The attempt that has the right to write, 0 for none. Another's than ours: the run was taken from us."""
    return max(map(_number, _claims(checkpoints)), default=0)


def _claims(checkpoints: Path) -> list[str]:
    return sorted(name for name in os.listdir(checkpoints) if name.startswith(WRITING))


def _number(name: str) -> int:
    match = re.fullmatch(rf"{re.escape(WRITING)}([0-9]{{1,12}})", name)
    return int(match[1]) if match else 0


def _take_away(checkpoints: Path, name: str) -> Path | None:
    try:
        return durable.discard(checkpoints / name, checkpoints, durable=False)
    except FileNotFoundError:
        return None  # another claim was faster


def _empty(folder: Path) -> None:
    # A stale writer may still add files through its handle, so deleting can meet a folder that is not
    # empty again. What remains after some rounds is left for the next sweep: it does no harm as trash.
    for _ in range(_ROUNDS):
        try:
            durable.delete_tree(folder)
            return
        except OSError:
            continue
