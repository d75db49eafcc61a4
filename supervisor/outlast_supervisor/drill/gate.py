"""Asking a process of the scratch run to stop itself at a point, and learning that it did."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import processes

HOOK = Path(__file__).with_name("hook")
"""What has to be on a Python's path for it to heed a gate."""


class Gate:
    """One folder of asking; see `hook/sitecustomize.py` for what lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._token = 0
        self.stopped: ProcessIdentity | None = None
        """Who stands at a point now."""

    def arm(self, point: str, *, role: str = "worker", attempt: int = 0, step: int = 0) -> None:
        """The next process of this role, attempt and step, or a later one, that comes to this point stops."""
        self.disarm()
        self._token += 1
        new = self.folder / "arming"
        new.write_text(f"{self._token} {role} {point} {attempt} {step}\n")
        new.rename(self.folder / "armed")

    def disarm(self) -> None:
        """Nobody is asked to stop any more."""
        (self.folder / "armed").unlink(missing_ok=True)

    def taken(self) -> bool:
        """Whether somebody has come to the point and stands still."""
        for hit in self.folder.glob("hit-*"):
            identity = ProcessIdentity.of(int(hit.name.rpartition("-")[2]))
            if identity is not None and not stopped(identity.pid):
                return False  # it is about to stop
            hit.unlink(missing_ok=True)
            self.stopped = identity
            return identity is not None
        return False

    def release(self) -> None:
        """Let who stands at a point go on."""
        if self.stopped is not None:
            processes.send(self.stopped, signal.SIGCONT)
        self.stopped = None

    def refuse(self, code: int | None) -> None:
        """Have each write among the checkpoints fail with this errno; None: no longer."""
        new = self.folder / "refusing"
        if code is None:
            (self.folder / "refuse").unlink(missing_ok=True)
            return
        new.write_text(str(code))
        new.rename(self.folder / "refuse")

    def seen(self, what: str) -> bool:
        """Whether a process of that role, or any in that phase, was there."""
        return (self.folder / f"seen-{what}").exists()


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat[stat.rindex(b")") + 2 :].split()[0] in (b"T", b"t")
    return False


def path_with_hook(path: str | None) -> str:
    """A PYTHONPATH by which a Python heeds a gate, before this one."""
    return os.pathsep.join(filter(None, (str(HOOK), path)))
