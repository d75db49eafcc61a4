"""A child that was forked inside the training: two processes would save one run, over each other's files."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

WHY = (
    "cannot call {what}() in process {pid}, which was forked from the trainer: one process trains a run; "
    "enter the Checkpointer in the process that is to train, after the fork"
)
_kept: list[object] = []
"""What a child lets go of is not taken apart there: the folders and sockets that it names are its parent's."""


def in_children(leave: Callable[[], None], keep: object) -> None:
    """Call this method of an object, if that still lives, in every child that is forked from now on."""
    method = weakref.WeakMethod(leave)
    kept = weakref.ref(keep)

    def forked() -> None:
        if (found := method()) is not None:
            _kept.append(kept())
            found()

    os.register_at_fork(after_in_child=forked)
