"""One trainer an attempt: another one with the run's environment would save over the first one's files."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_PATIENCE = 5.0  # seconds in which what a launcher's former worker left behind has ended
_held: dict[Path, int | None] = {}
"""The folders that this process trains for, with the descriptor of the lock; None where locks are not to be had."""


class NotAlone(RuntimeError):
    """Another process, or another Checkpointer of this one, trains this attempt already."""


def be_sole(folder: Path) -> None:
    """Hold the attempt's own folder for this process until it ends. Raises NotAlone; no locks here, no check."""
    if folder in _held:
        raise NotAlone(
            "cannot enter a second Checkpointer in one run: each would go on from the other's generations; give one "
            "of them all that trains (any further keyword is a part), and each further training a job of its own"
        )
    _held[folder] = _lock(folder)


def leave(folder: Path) -> None:
    """Hold it no longer: this training has failed, and may be tried again."""
    if (fd := _held.pop(folder, None)) is not None:
        os.close(fd)


def _lock(folder: Path) -> int | None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(fd)
                raise NotAlone(
                    f"cannot train in process {os.getpid()}: another process trains this run; give each training "
                    "a job of its own, or start this one without the run's environment: env -u OUTLAST_RUN …"
                ) from None
            time.sleep(0.05)
        except OSError:
            os.close(fd)
            return None
        else:
            return fd


def _let_go() -> None:
    """In a forked child: it may outlive the trainer, and a launcher's next one would wait for it in vain."""
    for folder in list(_held):
        leave(folder)


os.register_at_fork(after_in_child=_let_go)
