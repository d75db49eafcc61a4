"""Run the commands that a job file names for an occasion, beside the run and never in its way."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from .processes import carries
from .sdnotify import MINE

TIMEOUT_SECONDS = 60.0  # a hook that takes longer is ended: it must not hold the end of a run
MARK = "OUTLAST_HOOK_OF"  # in the environment of hooks and of all that they start
_AGAIN = 1.0  # seconds until one that did not end by KILL is killed once more

# The shell goes to the run directory, not we: its file system may be what the hook is to tell of. Where the
# log cannot be written, the hook runs without one.
_PROLOGUE = '{ cd -- "$OUTLAST_RUN" && true >>logs/hooks.log; } 2>/dev/null && exec >>logs/hooks.log 2>&1\n'


class Hooks:
    """Starts hooks, knows their pids so that they are not taken for leftovers, and ends late ones."""

    def __init__(self, commands: Mapping[str, str | None], run: Path) -> None:
        self._commands = commands
        self._run = run
        self.mark = uuid.uuid4().hex
        self._running: dict[int, tuple[str, float]] = {}

    def replace(self, commands: Mapping[str, str | None]) -> None:
        """Other commands from now on: the job file was read again."""
        self._commands = commands

    def theirs(self, pid: int) -> bool:
        """Whether a process is a hook or was left in the background by one, as `mail` does."""
        return pid in self._running or carries(pid, f"{MARK}={self.mark}".encode())

    @property
    def pids(self) -> frozenset[int]:
        """Hooks that still run."""
        return frozenset(self._running)

    def start(self, name: str, reason: str, now: float) -> bool:
        """Start the hook of this name, where the job file has one; its output goes to logs/hooks.log."""
        command = self._commands.get(name)
        if not command:
            return False
        env = {name: value for name, value in os.environ.items() if name not in MINE}
        env.update(
            {
                "OUTLAST_RUN": str(self._run.absolute()),
                "OUTLAST_HOOK": name,
                "OUTLAST_REASON": reason.replace("\0", " "),
                MARK: self.mark,
            }
        )
        child = subprocess.Popen(
            ["/bin/sh", "-c", _PROLOGUE + command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        child.returncode = 0  # reaped by the loop
        self._running[child.pid] = (name, now + TIMEOUT_SECONDS)
        return True

    def ended(self, pid: int) -> str | None:
        """The name of the hook that had this pid, which is forgotten; None for another process."""
        return self._running.pop(pid, (None, 0.0))[0]

    def late(self, now: float) -> list[int]:
        """Hooks past their time; one that is still there a moment later is named again."""
        found = [pid for pid, (_, until) in self._running.items() if now >= until]
        for pid in found:
            self._running[pid] = (self._running[pid][0], now + _AGAIN)
        return found

    def next_due(self) -> float | None:
        """When the next hook runs out of time."""
        return min((until for _, until in self._running.values()), default=None)
