"""Loaded by every Python of a drilled run: stops the process where a drill asked for it, or refuses a write.

Audit events (PEP 578) tell of each durable act and of what the library tells its supervisor. The folder that
OUTLAST_DRILL names holds what is asked: `armed`, a line "TOKEN ROLE POINT ATTEMPT STEP", becomes `hit-PID` by the
one process that comes to the point, which then stops itself; while `refuse` is there, no file can be written among
the checkpoints, and it holds the errno.
"""

from __future__ import annotations

import _thread
import importlib.machinery
import importlib.util
import os
import signal
import sys

TYPE_CHECKING = False  # as typing has it, without what importing that costs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Watch:
    """What this process looks for, and what it has seen of its own saves."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.checkpoints = os.path.join(os.path.dirname(folder), "run", "checkpoints")
        attempt = os.environ.get("OUTLAST_ATTEMPT", "")
        self.role = "worker" if attempt else "supervisor"
        self.attempt = int(attempt or 0)
        self.step = 0
        self.complete = False
        self.busy: set[int] = set()  # threads that are in here: what they do here is no act of theirs

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        me = _thread.get_ident()
        if event not in _LOOKS or me in self.busy:
            return
        self.busy.add(me)
        try:
            point: str = _LOOKS[event](self, *args)
            if point:
                self.at(point)
        finally:
            self.busy.discard(me)

    def said(self, told: dict[Any, Any]) -> str:
        fields = {str(key): str(value) for key, value in told.items()}
        phase = fields.get("X_OUTLAST_PHASE", "")
        if "READY" in fields:
            return "batch"
        if "X_OUTLAST_STEP" in fields and phase:
            self.step = int(fields["X_OUTLAST_STEP"])
            return "step"
        if phase in ("restore", "eval", "save"):
            self.mark(phase)
            return phase
        return ""

    def written(self, path: str) -> str:
        """A file is about to be made."""
        if not path.startswith(self.checkpoints):
            return ""
        self.refuse(path)
        folder, name = os.path.split(path)
        if not folder[len(self.checkpoints) + 1 :].startswith(".writing-"):
            return ""
        if name in ("index.json", "index.json.sha256"):
            return "index" if name == "index.json" else "digest"
        return "files" if os.listdir(folder) else ""

    def renamed(self, source: str, target: str) -> str:
        if not source[len(self.checkpoints) + 1 :].startswith(".writing-"):
            return ""
        self.complete = True
        return "rename"

    def synced(self, path: str) -> str:
        if path != self.checkpoints or not self.complete:
            return ""
        self.complete = False
        return "sealed"

    def discarded(self, path: str) -> str:
        return "prune" if os.path.basename(path).startswith("step-") else ""

    def imported(self, module: str, *rest: Any) -> str:
        if module == "outlast_worker":
            self.mark("library")
        return ""

    def made(self, path: Any, mode: int, dir_fd: int) -> str:
        if os.fsdecode(path).startswith(self.checkpoints):
            self.refuse(path)
        return ""

    def removed(self, path: Any, dir_fd: int) -> str:
        return "pruning" if self.role == "supervisor" and os.fsdecode(path).endswith(".pt") else ""

    def mark(self, phase: str) -> None:
        name = os.path.join(self.folder, "seen-" + phase)
        if not os.path.exists(name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))

    def refuse(self, path: Any) -> None:
        try:
            with open(os.path.join(self.folder, "refuse")) as file:
                code = int(file.read())
        except (OSError, ValueError):
            return
        raise OSError(code, os.strerror(code), os.fsdecode(path))

    def at(self, point: str) -> None:
        """Stop here, if this is what is asked and nobody else was first."""
        armed = os.path.join(self.folder, "armed")
        try:
            with open(armed) as file:
                _, role, wanted, attempt, step = file.read().split()
            if (role, wanted) != (self.role, point) or self.attempt < int(attempt) or self.step < int(step):
                return
            os.rename(armed, os.path.join(self.folder, f"hit-{os.getpid()}"))
        except (OSError, ValueError):
            return
        os.kill(os.getpid(), signal.SIGSTOP)


_LOOKS: dict[str, Callable[..., str]] = {
    "outlast.said": _Watch.said,
    "import": _Watch.imported,
    "outlast.write": _Watch.written,
    "outlast.rename": _Watch.renamed,
    "outlast.sync": _Watch.synced,
    "outlast.discard": _Watch.discarded,
    "os.mkdir": _Watch.made,
    "os.remove": _Watch.removed,
}


def _begin(folder: str) -> None:
    watch = _Watch(folder)
    watch.mark(watch.role)
    sys.addaudithook(watch)
    watch.busy.add(_thread.get_ident())
    watch.at("import")
    watch.busy.clear()


def _load_next() -> None:
    """The sitecustomize that this one hides: the system's own, or the job's."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("OUTLAST_DRILL"):
    _begin(os.environ["OUTLAST_DRILL"])
_load_next()
