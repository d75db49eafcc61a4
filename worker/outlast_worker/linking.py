"""Shards that did not change since earlier saves: linked from one of them, instead of written again.

Linked is from the generation before the newest, never from the newest: so two that follow one another share no file,
and whatever lies in two or more generations that are kept lies on the disk at least twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from outlast_jobs.generation import FileEntry
from outlast_jobs.hardlink import Stamp
from outlast_jobs.sealer import Sealer
from outlast_worker.image import ShardImage


class Kept(Struct, frozen=True):
    """The files of a generation that this attempt has sealed, as they were then."""

    folder: Path
    files: Mapping[str, FileEntry]
    stamps: Mapping[str, Stamp]

    def there(self, member: str) -> bool:
        """Whether the file is still in its place, and nobody wrote to it."""
        try:
            return Stamp.of(os.stat(self.folder / member, follow_symlinks=False)) == self.stamps[member]
        except (OSError, KeyError):
            return False


class Links:
    """What the two newest generations of an attempt hold. Another attempt's are not linked from."""

    def __init__(self) -> None:
        self._newest: Kept | None = None
        self._before: Kept | None = None

    def sealed(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """The next generation is there."""
        stamps = {}
        try:
            for member in files:
                stamps[member] = Stamp.of(os.stat(folder / member, follow_symlinks=False))
        except OSError:
            pass  # of which nothing is linked then
        self._newest, self._before = Kept(folder, dict(files), stamps), self._newest

    def take(self, sealer: Sealer, member: str, image: ShardImage) -> bool:
        """Link the shard with this content, if it is one that does not change; else ``image`` has to be written."""
        source = self._source(member)
        if source is None or image.size != source.files[member].bytes:
            return False
        looked = image.again()
        entry = sealer.hashed(looked)  # nothing else tells for sure that it is the same
        if entry != source.files[member]:
            return False
        try:
            sealer.link(member, source.folder, entry, source.stamps[member])
        except OSError:
            return False  # no links here, or too many: a write will say what is wrong
        image.nan = looked.nan
        return True

    def _source(self, member: str) -> Kept | None:
        """Where it may be linked from: it was the same twice, and both files are whole as far as can be seen."""
        newest, before = self._newest, self._before
        if newest is None or before is None:
            return None
        entry = before.files.get(member)
        if entry is None or newest.files.get(member) != entry:
            return None
        return before if newest.there(member) and before.there(member) else None
