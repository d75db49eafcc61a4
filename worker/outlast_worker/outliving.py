"""The copy in a buffer, made good for those who come after us: should this process die, they finish its save."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from outlast_jobs.buffer_state import State
from outlast_worker.buffer import Buffer

AUDIT = "outlast.copied"
"""The audit event (PEP 578) of a copy from then on not lost with this process, with its step."""


class Outliving:
    """One copy. It counts once its note stands *and* it is known to be right, whichever comes last."""

    def __init__(self, step: int, buffer: Buffer, note: Callable[[], memoryview | None]) -> None:
        self.meta: memoryview | None = None
        """`meta.pt` as it lies in the buffer; None where it does not, or there is no note."""
        self._step = step
        self._buffer = buffer
        self._note = note
        self._lock = threading.Lock()
        self._missing = 2
        buffer.tell(State.NONE)

    def note_down(self) -> None:
        """Put in what is no tensor's, and the note. Whatever stands in the way of the latter costs only this."""
        self.meta = self._note()
        if self.meta is not None:
            self._advance()

    def right(self) -> None:
        """It is whole, and what was copied did not change under it."""
        self._advance()

    def ended(self, *, sealed: bool) -> None:
        """Its save is over: a generation holds it, or it is of no use."""
        with self._lock:
            self._missing = -1
            self._buffer.tell(State.SEALED if sealed and self.meta is not None else State.NONE)

    def _advance(self) -> None:
        with self._lock:
            self._missing -= 1
            if self._missing != 0:
                return
            self._buffer.tell(State.COPIED)
        sys.audit(AUDIT, self._step)
