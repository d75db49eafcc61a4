"""A folder of jobs under a real daemon: files are dropped, changed and removed, processes are killed and counted.

The workers are shells, since torch has no part in this. Each takes a lock of its job and writes a line into its
log, so that a second one of the same job would be seen whatever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tests.e2e.harness import OUTLAST, all_pids, gone
from tests.waiting import wait_until, whole_lines

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import processes
from outlast_supervisor.daemon.supervisors import find

T = TypeVar("T")

PATIENCE = 60.0
_MARK = "OUTLAST_YARD_MARK"
_WORKER = (
    'exec 9>>"$1.lock"; flock -n 9 || echo double >>"$1"; '
    'echo "begin $$ $OUTLAST_ATTEMPT ${CUDA_VISIBLE_DEVICES-none} ${OUTLAST_SLOTS-none} ${TOLD-}" >>"$1"; '
)
STAYS = _WORKER + "exec sleep 1000"
ENDS = _WORKER + 'echo end >>"$1"'
FAILS = _WORKER + "exit 3"


@dataclass(frozen=True)
class Begun:
    """What a worker wrote when it began."""

    pid: int
    attempt: int
    gpus: str
    slots: str
    told: str


class Yard:
    """One folder of jobs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "jobs"
        self.folder.mkdir(parents=True)
        (home / "seen").mkdir()
        self.mark = uuid.uuid4().hex
        kept = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", _MARK: self.mark}
        self.env = {**os.environ, **kept}
        for name in ("CUDA_VISIBLE_DEVICES", "OUTLAST_SLOTS", "OUTLAST_DAEMON"):
            self.env.pop(name, None)
        self.daemons: list[subprocess.Popen[bytes]] = []

    # --- the folder ---

    def write(self, name: str, script: str = STAYS, *, file: str | None = None, **sections: Any) -> Path:
        """Drop a job file, or write it anew, in one piece."""
        job = {
            "name": name,
            "command": ["bash", "-c", script, "worker", str(self.seen(name))],
            "restart": {"backoff": "10ms..50ms", "without_progress": 2, "waiting": "0s"},
            **sections,
        }
        target = self.folder / f"{file or name}.yaml"
        temporary = self.folder / f".{file or name}.new"
        temporary.write_text(yaml.safe_dump(job, sort_keys=False))
        temporary.rename(target)
        return target

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.yaml").unlink()

    def seen(self, name: str) -> Path:
        """Where a job's workers write."""
        return self.home / "seen" / name

    def lines(self, name: str) -> list[str]:
        return whole_lines(self.seen(name))

    def begun(self, name: str) -> list[Begun]:
        """The workers that this job ever had, in order."""
        words = [line.split(" ") for line in self.lines(name) if line.startswith("begin ")]
        return [Begun(int(w[1]), int(w[2]), w[3], w[4], w[5]) for w in words]

    def supervisor_log(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / ".outlast" / "logs" / f"{name}.yaml.log").read_text()
        return ""

    # --- processes ---

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """A daemon, in a session of its own and without a terminal."""
        log = self.home / f"daemon-{len(self.daemons) + 1:02d}.txt"
        with log.open("xb") as file:
            daemon = subprocess.Popen(
                [OUTLAST, "daemon", str(self.folder), "--rescan", "600", *args],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.daemons.append(daemon)
        return daemon

    def kill_daemon(self) -> None:
        self.daemons[-1].kill()
        self.daemons[-1].wait()

    def drain(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.outlast("drain", str(self.folder), *args)

    def outlast(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Any command, waited for."""
        return subprocess.run(
            [OUTLAST, *args],
            env=self.env,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def supervisors(self) -> dict[str, ProcessIdentity]:
        """Those that live, by the name of their run directory."""
        return {Path(mark.run_dir).name: who for who, mark in find(self.folder).items()}

    def worker(self, name: str) -> int | None:
        """The pid of a job's worker, where one lives."""
        begun = self.begun(name)
        return begun[-1].pid if begun and not gone(begun[-1].pid) else None

    def running(self) -> set[str]:
        """Jobs that have a supervisor and a worker."""
        return {name for name in self.supervisors() if self.worker(name) is not None}

    def until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        try:
            return wait_until(condition, seconds, what)
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.report()}") from None

    def until_running(self, *names: str) -> None:
        """Wait until exactly these run."""
        self.until(lambda: self.running() == set(names), f"{sorted(names)} to run")

    # --- looking ---

    def books(self) -> dict[str, Any]:
        """What the daemon left, or nothing."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / ".outlast" / "state.json").read_text())
            return found
        return {}

    def states(self) -> dict[str, str]:
        """How each job stands, by what the daemon wrote."""
        jobs: Mapping[str, Any] = self.books().get("jobs", {})
        return {file.removesuffix(".yaml"): job["state"] for file, job in jobs.items()}

    def said(self) -> str:
        """What the newest daemon said."""
        return (self.home / f"daemon-{len(self.daemons):02d}.txt").read_text()

    def no_doubles(self) -> None:
        """No job ever had two workers at a time, and each had an attempt's number of its own."""
        for seen in (self.home / "seen").iterdir():
            if seen.suffix != ".lock":
                begun = self.begun(seen.name)
                assert "double" not in self.lines(seen.name), self.report()
                assert len({b.attempt for b in begun}) == len(begun), self.report()

    def report(self) -> str:
        parts = [f"states: {self.states()}", f"running: {sorted(self.running())}"]
        for number in range(max(1, len(self.daemons) - 1), len(self.daemons) + 1):
            log = self.home / f"daemon-{number:02d}.txt"
            parts.append(f"{log.name}:\n{log.read_text()[-4000:]}")
        return "\n".join(parts)

    # --- the end ---

    def kill_all(self) -> None:
        """SIGKILL for everything of this yard, again until nothing is left: a power cut, as far as one can tell."""
        mark = f"{_MARK}={self.mark}".encode()
        wait_until(
            lambda: not [self._kill(pid) for pid in all_pids() if _carries(pid, mark)], PATIENCE, "the end"
        )
        for daemon in self.daemons:
            daemon.wait()

    def _kill(self, pid: int) -> int:
        identity = ProcessIdentity.of(pid)
        if identity is not None and _carries(pid, f"{_MARK}={self.mark}".encode()):
            processes.send(identity, signal.SIGKILL)
        return pid


def _carries(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and not gone(pid)
    return False
