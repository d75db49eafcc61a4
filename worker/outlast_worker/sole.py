"""One trainer an attempt: another process with the run's environment would save over the first one's files."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_PATIENCE = 5.0  # seconds in which what a launcher's former worker left behind has ended
_held: dict[tuple[int, Path], int] = {}


class NotAlone(RuntimeError):
    """Another process trains this attempt already."""


def be_sole(folder: Path) -> None:
    """Hold the attempt's own folder for this process until it ends. Raises NotAlone; no locks here, no check."""
    if (os.getpid(), folder) in _held:
        return
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
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
            return
        else:
            _held[os.getpid(), folder] = fd
            return
