"""Run the commands that a job file names for an occasion, beside the run and never in its way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_SECONDS = 60.0  # a hook that takes longer is ended: it must not hold the end of a run


class Hooks:
    """Starts hooks, knows their pids so that they are not taken for leftovers, and ends late ones."""

    def __init__(self, commands: Mapping[str, str | None], run: Path) -> None:
        self._commands = commands
        self._run = run
        self._running: dict[int, tuple[str, float]] = {}

    @property
    def pids(self) -> frozenset[int]:
        """Hooks that still run."""
        return frozenset(self._running)

    def start(self, name: str, reason: str, now: float) -> bool:
        """Start the hook of this name, where the job file has one; its output goes to logs/hooks.log."""
        command = self._commands.get(name)
        if not command:
            return False
        env = dict(os.environ)
        env.update(OUTLAST_RUN=str(self._run), OUTLAST_HOOK=name, OUTLAST_REASON=reason)
        log = os.open(
            self._run / "logs" / "hooks.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", command],
                cwd=self._run,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        child.returncode = 0  # reaped by the loop
        self._running[child.pid] = (name, now + TIMEOUT_SECONDS)
        return True

    def ended(self, pid: int) -> str | None:
        """The name of the hook that had this pid, which is forgotten; None for another process."""
        return self._running.pop(pid, (None, 0.0))[0]

    def late(self, now: float) -> list[int]:
        """Hooks past their time."""
        return [pid for pid, (_, until) in self._running.items() if now >= until]

    def next_due(self) -> float | None:
        """When the next hook runs out of time."""
        return min((until for _, until in self._running.values()), default=None)
