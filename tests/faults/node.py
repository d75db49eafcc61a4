"""A node: its own processes, host name, mounts and boots, on folders that it shares with others."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.harness import PATIENCE, Run, Supervisor, all_pids, children, gone, kill
from tests.waiting import wait_until

# The first process only keeps the node up, as an init does, and ends with what it started. Each boot has an id of its
# own. $2 is what further makes it another node: mounts, say.
_BOOT = """
set -e
hostname "$1"
mount --bind "$3" /proc/sys/kernel/random/boot_id
mount -t tmpfs run /run
eval "$2"
shift 3
set +e
"$@"
exit $?
"""
_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--uts", "--ipc")


class Node:
    """Off at first. ``setup`` is what a shell does at each boot; ``prefix`` goes before the command that it starts."""

    def __init__(self, folder: Path, name: str, *, setup: str = "true", prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.boots: list[str] = []
        self._folder = folder
        self._setup = setup
        self._prefix = tuple(prefix)
        self._on: Supervisor | None = None

    def boot(self, run: Run, *words: str) -> Supervisor:
        """Switch it on; it starts the run at once, and is on as long as that goes on."""
        self.boots.append(str(uuid.uuid4()))
        boot = self._folder / f"{self.name}-boot-{len(self.boots)}"
        boot.write_text(f"{self.boots[-1]}\n")
        place = ("sh", "-c", _BOOT, "node", self.name, self._setup, str(boot))
        self._on = run.start(*words, wrapper=(*_UNSHARE, *place, *self._prefix))
        return self._on

    def processes(self) -> list[int]:
        """All that runs on it, as numbered out here."""
        space = _space(self._init())
        return [pid for pid in all_pids() if _space(pid) == space and not gone(pid)]

    def inside(self, *command: str) -> str:
        """What a command says there."""
        words = ["nsenter", "--target", str(self._init()), "--mount", "--pid", "--uts", "--ipc", *command]
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout

    def freeze(self) -> None:
        """It stands still, all at once as far as anybody can see: its power is not cut, and nobody hears of it."""
        for pid in self.processes():
            kill(pid, signal.SIGSTOP)
        wait_until(self._still, PATIENCE, f"node {self.name} to stand still")

    def thaw(self) -> None:
        for pid in self.processes():
            kill(pid, signal.SIGCONT)

    def cut(self) -> None:
        """Kill its first process, and with it, in that instant, all others."""
        if self._on is not None and self._on.running():
            # those that it started die before their first process does, so none is left when that is gone
            kill(self._init())
            self._on.process.wait(PATIENCE)

    def _init(self) -> int:
        if self._on is None:
            raise AssertionError(f"node {self.name} is off")
        return self._on.until(lambda: next(iter(children(self._on.pid)), None), f"node {self.name}")

    def _still(self) -> bool:
        moving = [pid for pid in self.processes() if _state(pid) not in b"TtZX"]
        for pid in moving:  # one that was started after the others were looked up
            kill(pid, signal.SIGSTOP)
        return all(_state(pid) == b"D" and _holds_up(pid) for pid in moving)


def _holds_up(pid: int) -> bool:
    """Whether a process waits, held in the kernel, for the exec of a child that stands still: vfork(2)."""
    return any(_state(child) in b"Tt" for child in children(pid))


def _space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _state(pid: int) -> bytes:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return b"X"
    return stat[stat.rindex(b")") + 2 :][:1]
