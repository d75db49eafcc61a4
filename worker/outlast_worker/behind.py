"""Hash in a thread behind the one that fetches the bytes: a disk that is waited for could have gone on meanwhile."""

from __future__ import annotations

import queue

from outlast_jobs.blocks import Hasher
from outlast_jobs.parallel import start_thread


class Behind:
    """A digest of pieces that stay as they are. Where no thread is to be had, each is hashed as it comes."""

    def __init__(self, digest: Hasher) -> None:
        self._digest = digest
        self._pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._thread = start_thread(self._run, "outlast-hash")

    def update(self, piece: memoryview, /) -> None:
        """The next piece."""
        if self._thread is None:
            self._digest.update(piece)
        else:
            self._pieces.put(piece)

    def hexdigest(self) -> str:
        """Of all of them, once they are hashed."""
        self.end()
        return self._digest.hexdigest()

    def end(self) -> None:
        """Hash what is there, and no more."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._digest.update(piece)
