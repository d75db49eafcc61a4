"""Write to where a write may wait for ever, in a thread of its own: nobody else waits there."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

from outlast_jobs.parallel import start_thread

_LAST_WAIT = 3.0  # seconds at the end for a file that nobody may be able to write


class Outlet:
    """Writes to a descriptor in a thread of its own, and takes no more while ``most`` pieces are not written."""

    def __init__(self, fd: int, most: int) -> None:
        self._fd = fd
        self._most = most
        self.closing = False  # nothing comes after: what is offered now is taken, or it would be lost unsaid
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._taken = self._written = 0

    @property
    def busy(self) -> bool:
        """Whether something of what was taken is not written yet."""
        return self._taken != self._written

    def write(self, data: bytes) -> bool:
        """Whether it was taken."""
        if self._waiting.qsize() >= self._most and not self.closing:
            return False
        if self._thread is None:
            self._thread = start_thread(self._work, "outlet")
            if self._thread is None:  # no more threads for us now, and perhaps later
                return False
        self._taken += 1
        self._waiting.put(data)
        return True

    def close(self) -> None:
        """Wait a moment for what was taken."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_LAST_WAIT)

    def _work(self) -> None:
        while (data := self._waiting.get()) is not None:
            with contextlib.suppress(OSError):  # a full disk loses lines here and nothing else
                while data:
                    data = data[os.write(self._fd, data) :]
            self._written += 1
