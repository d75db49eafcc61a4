"""Write one generation and seal it: files, index, digest, folder, rename, parent, each durable in turn."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from outlast_jobs import durable
from outlast_jobs.blocks import Image, feed
from outlast_jobs.errors import AlreadySealed, Fenced
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    INDEX_LIMIT,
    FileEntry,
    GenerationName,
    Index,
    digest_line,
    encode_index,
    safe_member,
    writing_folder,
)
from outlast_jobs.hardlink import Stamp, link_file


class Sealer:
    """One save of one attempt. ``begin``, ``add`` or ``link`` each file, ``seal``; ``abort`` after any error.

    Several threads may ``add`` at a time. ``progress`` is told the bytes of this save written so far, after each
    piece, by one thread at a time.
    """

    def __init__(
        self,
        checkpoints: Path,
        attempt: int,
        name: GenerationName,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if name.attempt != attempt:
            raise ValueError(f"attempt {attempt} can't seal {str(name)!r}, which is another attempt's")
        self.checkpoints = checkpoints
        self.name = name
        self.folder = writing_folder(checkpoints, attempt) / str(name)
        self.target = checkpoints / str(name)
        self.files: dict[str, FileEntry] = {}
        self.bytes_written = 0
        # the run directory: nothing is written out of it, whatever is swapped in
        self._root = checkpoints.parent
        self._progress = progress
        self._counting = threading.Lock()

    def begin(self) -> Path:
        """Make the folder to write in. Fenced if a newer attempt took ours away, AlreadySealed if it is."""
        if os.path.lexists(self.target):
            raise self._already_sealed()
        if self.folder.parent.is_symlink():
            raise Fenced(
                f"{str(self.folder.parent)!r} has become a symbolic link; nothing is written through it"
            )
        try:
            try:
                self.folder.mkdir()
            except FileExistsError:  # an earlier save of this step that failed and could not be cleaned up
                durable.delete_tree(self.folder)
                self.folder.mkdir()
        except OSError as error:
            self._raise_as_what_it_means(error)
        return self.folder

    def path(self, member: str) -> Path:
        """Where a file of the generation is written."""
        return self.folder / safe_member(member)

    def add(self, member: str, chunks: bytes | Iterable[bytes | bytearray | memoryview] | Image) -> FileEntry:
        """Write one file, hashed while it is written, checked for its length, and synced."""
        path = self.path(member)
        try:
            written = durable.write_file(path, chunks, progress=self._count, root=self._root)
        except OSError as error:
            self._raise_as_what_it_means(error)
        entry = FileEntry(bytes=written.bytes, sha256=written.sha256)
        self.files[member] = entry
        return entry

    def hashed(self, image: Image) -> FileEntry:
        """What a file of this content would be; nothing is written, and ``progress`` is told nothing new."""
        digest = hashlib.sha256()
        return FileEntry(bytes=feed(image, digest, progress=self._count), sha256=digest.hexdigest())

    def link(self, member: str, folder: Path, entry: FileEntry, stamp: Stamp) -> None:
        """Take the file of that name from another generation's folder, which is known to be as ``entry`` says.

        OSError where that can't be; the file can be added then.
        """
        link_file(folder / safe_member(member), self.path(member), stamp, root=self._root)
        self.files[member] = entry

    def seal(self, index: Index) -> Path:
        """Write ``index`` with the files added, and publish. Returns the sealed generation's folder."""
        if (index.step, index.attempt) != (self.name.step, self.name.attempt):
            raise ValueError(
                f"the index says step {index.step} of attempt {index.attempt}, the name is {str(self.name)!r}"
            )
        data = encode_index(msgspec.structs.replace(index, files=dict(self.files)))
        try:
            for member, content in ((INDEX, data), (INDEX_DIGEST, digest_line(data))):
                durable.write_file(self.folder / member, content, progress=self._count, root=self._root)
            durable.fsync_dir(self.folder)
        except OSError as error:
            self._raise_as_what_it_means(error)
        self._publish(data)
        return self.target

    def _publish(self, data: bytes) -> None:
        try:
            durable.rename_to_free_name(self.folder, self.target)
        except OSError as error:
            # A rename that was done may be reported as failed: over NFS the request is sent again when its
            # answer is lost, and then finds nothing to rename.
            if not self._is_ours(data):
                self._raise_as_what_it_means(error)
        # Not within the try: a failed fsync must not be tried again, for the second one may lie.
        durable.fsync_dir(self.checkpoints)

    def abort(self) -> None:
        """Remove what was written. Never raises: what can't be removed now is swept by the next claim."""
        try:
            durable.delete_tree(self.folder)
        except OSError:
            pass

    @staticmethod
    def clear(checkpoints: Path, attempt: int) -> None:
        """Remove what earlier saves of this attempt left that failed and whose ``abort`` failed too. Never raises."""
        folder = writing_folder(checkpoints, attempt)
        try:
            for name in os.listdir(folder):
                durable.delete_tree(folder / name)
        except OSError:
            pass  # what is wrong with the disk the next save finds out for itself

    def _count(self, written: int) -> None:
        with self._counting:
            self.bytes_written += written
            if self._progress is not None:
                self._progress(self.bytes_written)

    def _is_ours(self, data: bytes) -> bool:
        try:
            found = durable.read_file(self.target / INDEX, INDEX_LIMIT)
        except (OSError, ValueError):
            return False
        return found == data

    def _raise_as_what_it_means(self, error: OSError) -> NoReturn:
        """Raise Fenced or AlreadySealed where that is behind ``error``, else ``error`` itself."""
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and os.path.lexists(self.target):
            raise self._already_sealed() from error
        # ESTALE: a network file system's way to say that the folder behind the handle is gone.
        if error.errno in (errno.ENOENT, errno.ESTALE) and self.checkpoints.is_dir():
            raise Fenced(
                f"can't write {str(self.name)!r}: {str(self.folder.parent)!r} is gone, taken away by a newer "
                "attempt, which now owns the run; this one must stop"
            ) from error
        raise error

    def _already_sealed(self) -> AlreadySealed:
        return AlreadySealed(f"{str(self.target)!r} is sealed already, and is never overwritten")
