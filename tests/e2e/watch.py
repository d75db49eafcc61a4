"""Looks at a run's generations all the time, from outside: whether a good one is always there."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from tests.e2e.harness import Run

from outlast_jobs.look import FileStats, Verdict, look
from outlast_jobs.verify import scan

_EVERY = 0.01
_ANYWAY = 0.25
"""Seconds: how often the folder is asked whether it changed, and how often it is looked at although it did not."""


class AlwaysOne(threading.Thread):
    """From the first sealed generation on there must at no moment be none that verifies."""

    def __init__(self, run: Run) -> None:
        super().__init__(name="always-one", daemon=True)
        self.seen = 0
        self.broken = ""
        self._checkpoints = run.directory.checkpoints
        self._run_id: str | None = None
        self._run = run
        self._known: dict[str, FileStats] = {}
        self._end = threading.Event()

    def __enter__(self) -> AlwaysOne:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        looked, changed = 0.0, None
        while not self._end.wait(_EVERY) and not self.broken:
            now, last = time.monotonic(), changed
            with contextlib.suppress(FileNotFoundError):
                changed = os.stat(self._checkpoints).st_mtime_ns  # of each name that comes, changes or goes
            if changed != last or now - looked > _ANYWAY:
                looked = now
                self._look()

    def _look(self) -> None:
        before = _listed(self._checkpoints)
        self._run_id = self._run_id or self._run.run_id
        why = []
        for path in scan(self._checkpoints) if before else []:
            found = look(path, self._run_id, full=True, remembered=self._known.get(path.name))
            if found.verdict is Verdict.VERIFIED:
                self._known[path.name] = found.stats
                self.seen += 1
                return
            why.append(f"{path.name}: {found.reason}")
        # One that was pruned while we read it proves nothing; a listing that stands still does.
        if self.seen and before == _listed(self._checkpoints):
            self.broken = f"no generation verifies: {why or 'none is there'}; listed: {sorted(before)}"


def _listed(checkpoints: Path) -> set[str]:
    try:
        return {name for name in os.listdir(checkpoints) if name.startswith("step-")}
    except FileNotFoundError:
        return set()
