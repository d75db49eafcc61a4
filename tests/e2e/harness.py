"""Real runs for the end-to-end tests: a job file, `outlast run` as a process, and eyes on disk and /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tests.waiting import wait_until

from outlast_jobs.contract import Env
from outlast_jobs.errors import IntegrityError
from outlast_jobs.journal import Record, read_journal
from outlast_jobs.look import Finding, Verdict, look
from outlast_jobs.metrics import history, read_metrics
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.verify import scan
from outlast_supervisor.processes import holding

T = TypeVar("T")

OUTLAST = str(Path(sys.executable).with_name("outlast"))
SCRIPTS = Path(__file__).resolve().parent / "scripts"


def light() -> dict[str, str]:
    """The environment in which a training imports only half of torch; see scripts/light."""
    place, path = str(SCRIPTS / "light"), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join([place, *(part for part in path if part not in ("", place))])}


PATIENCE = 60.0
"""Seconds until a wait is given up: starts are slow on noisy cores, and only a failure waits so long."""
QUICK = {"backoff": "10ms..50ms"}
"""A `restart` section for tests that restart often."""

_MARK = "OUTLAST_E2E_MARK"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said on each stream."""

    code: int
    out: str
    err: str


class Supervisor:
    """One `outlast run`: a process of its own, whose output goes to a file so that no pipe can fill up."""

    def __init__(self, run: Run, process: subprocess.Popen[bytes], log: Path) -> None:
        self.run = run
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything it said so far, on both streams."""
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Signal the supervisor alone. Nothing is sent to a process that has ended."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code (negative: the signal); late, the error shows what it said."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"outlast run did not end in {seconds:g} s\n{self.run.report()}") from None

    def worker(self, seconds: float = PATIENCE) -> int:
        """The pid of the worker as soon as it is executed: within a few ms, long before it attaches."""
        return self.until(self.worker_now, "a worker", seconds)

    def worker_now(self) -> int | None:
        """The child that is an attempt's first process, or None: none yet, or between two attempts."""
        mark = f"{Env.ATTEMPT}=".encode()
        return next((pid for pid in children(self.pid) if mark in _environ(pid) and not gone(pid)), None)

    def until(self, condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Wait as `Run.until`, but give up at once where this supervisor ends meanwhile."""

        def look_again() -> tuple[T] | None:
            if value := condition():
                return (value,)
            if not self.running():
                if value := condition():
                    return (value,)
                raise AssertionError(f"outlast run ended before {what}\n{self.run.report()}")
            return None

        return self.run.until(look_again, what, seconds)[0]


class Run:
    """One run in a folder of its own: `job.yaml`, the script beside it, and the run directory `run`.

    ``job`` is the job file as a dict; what a test always wants is filled in: a name, `signals: outlast`,
    short backoff, the run directory. "{scripts}" in the command becomes the folder of the tests' scripts.
    """

    def __init__(
        self, folder: Path, job: Mapping[str, Any], *, script: str | None = None, env: Mapping[str, str] = {}
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.directory = RunDirectory(folder / "run")
        self.job_file = folder / "job.yaml"
        kept = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.env = {**os.environ, **kept, **light(), **env}
        self._mark = uuid.uuid4().hex
        self.env[_MARK] = self._mark
        self.supervisors: list[Supervisor] = []
        self.write_job(job)
        if script is not None:
            (folder / "train.py").write_text(script)

    # --- doing ---

    def write_job(self, job: Mapping[str, Any]) -> None:
        """Write the job file, or write it anew."""
        whole = {"name": "e2e", "signals": "outlast", "restart": QUICK, "run_dir": "run", **job}
        whole["command"] = [str(word).replace("{scripts}", str(SCRIPTS)) for word in whole["command"]]
        self.job_file.write_text(yaml.safe_dump(whole, sort_keys=False))

    def start(self, *args: str, wrapper: Sequence[str] = (), env: Mapping[str, str] = {}) -> Supervisor:
        """`outlast run -v job.yaml ARGS`, in a process group of its own, not waited for."""
        log = self.folder / f"supervisor-{len(self.supervisors) + 1:03d}.txt"
        with log.open("xb") as file:
            process = subprocess.Popen(
                [*wrapper, OUTLAST, "run", "-v", str(self.job_file), *args],
                cwd=self.folder,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        supervisor = Supervisor(self, process, log)
        self.supervisors.append(supervisor)
        return supervisor

    def cli(self, *args: str, seconds: float = PATIENCE) -> Ended:
        """Any other `outlast` command, waited for."""
        done = subprocess.run(
            [OUTLAST, *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def until(self, condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Wait for a condition; late, the error shows the status, the journal's end and the logs' ends."""
        try:
            return wait_until(condition, seconds, what)  # type: ignore[return-value]
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.report()}") from None

    def until_status(
        self, condition: Callable[[dict[str, Any]], object], what: str, seconds: float = PATIENCE
    ) -> dict[str, Any]:
        """Wait until `status.json` says so. It is renewed at events and now and then, not at each step."""

        def look_again() -> dict[str, Any] | None:
            status = self.status()
            return status if status and condition(status) else None

        return self.until(look_again, what, seconds)

    def until_step(self, step: int, attempt: int | None = None, seconds: float = PATIENCE) -> int:
        """Wait until the metrics of the newest (or this) attempt hold this step or a later one."""

        def look_again() -> int | None:
            newest = self.last_step(attempt)
            return newest if newest is not None and newest >= step else None

        return self.until(look_again, f"step {step} in the metrics", seconds)

    # --- looking ---

    @property
    def run_id(self) -> str | None:
        with contextlib.suppress(IntegrityError, OSError):
            return self.directory.read_run().run_id
        return None

    def status(self) -> dict[str, Any] | None:
        return self.directory.read_status()

    def records(self, *events: str) -> list[Record]:
        """The journal's records over all lives, or those of these events."""
        if not self.directory.journal.is_dir():
            return []
        return [r for r in read_journal(self.directory).records if not events or r.event in events]

    def generations(self) -> list[Path]:
        """What is published under a generation's name, newest first."""
        return scan(self.directory.checkpoints) if self.directory.checkpoints.is_dir() else []

    def findings(self) -> list[Finding]:
        """Every published generation read in full against its index, newest first.

        One that is pruned while it is read is left out: it is no longer published.
        """
        found = [(path, look(path, self.run_id, full=True)) for path in self.generations()]
        return [f for path, f in found if f.verdict is Verdict.VERIFIED or path.exists()]

    def verified(self) -> list[Finding]:
        return [f for f in self.findings() if f.verdict is Verdict.VERIFIED]

    def attempts(self) -> list[int]:
        """Numbers of the attempts that were launched, by their logs."""
        return sorted(int(p.stem.rpartition("-")[2]) for p in self.directory.logs.glob("attempt-*.log"))

    def log(self, attempt: int | None = None) -> str:
        """The log of one attempt, or of all in order."""
        wanted = [attempt] if attempt is not None else self.attempts()
        return "".join(self.directory.attempt_log(n).read_text(errors="replace") for n in wanted)

    def metrics(self, attempt: int) -> list[dict[str, Any]]:
        """One attempt's lines as they are now, each step once."""
        return list(read_metrics(self.directory.attempt_metrics(attempt)).lines)

    def history(self) -> list[dict[str, Any]]:
        """Each step once, from the attempt that went on."""
        return list(history(self.directory))

    def last_step(self, attempt: int | None = None) -> int | None:
        """The last step in the metrics of this attempt, or of the newest one launched."""
        if attempt is None:
            launched = self.attempts()
            if not launched:
                return None
            attempt = launched[-1]
        lines = self.metrics(attempt)
        return lines[-1]["step"] if lines else None

    # --- processes ---

    def processes(self) -> list[int]:
        """Everything alive that descends from this run's supervisors, themselves included; no zombies."""
        return sorted(self._marked())

    def of_attempts(self) -> list[int]:
        """Everything alive that belongs to an attempt of this run: worker, loaders, strays."""
        run_id = self.run_id
        if run_id is None:
            return []
        mark = f"{Env.RUN_ID}={run_id}".encode()
        return [pid for pid in all_pids() if mark in _environ(pid) and not gone(pid)]

    def nothing_left(self, seconds: float = PATIENCE) -> None:
        """No process of this run is alive; those that are ending right now are waited for."""
        self.until(lambda: not self.processes(), f"the end of processes {self.described()}", seconds)

    def described(self) -> str:
        return ", ".join(f"{pid} ({_command(pid)})" for pid in self.processes()) or "none"

    def close(self) -> None:
        """Kill what this run left, and nothing else."""
        for supervisor in self.supervisors:
            if supervisor.running():
                supervisor.process.kill()
        deadline = time.monotonic() + PATIENCE
        while alive := self._marked():
            for pid in alive:
                self._kill(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot end {self.described()}")
            time.sleep(0.01)
        for supervisor in self.supervisors:
            supervisor.process.wait()

    def report(self) -> str:
        """All that helps to see what went wrong."""
        parts = [f"status: {self.status()}", "journal:"]
        parts += [f"  {r.life}/{r.seq} {r.event} {r.data}" for r in self.records()[-40:]]
        for supervisor in self.supervisors[-2:]:
            parts += [f"{supervisor.log.name}:", supervisor.output[-3000:]]
        for attempt in self.attempts()[-2:]:
            parts += [f"log of attempt {attempt}:", self.log(attempt)[-3000:]]
        parts.append(f"processes: {self.described()}")
        return "\n".join(parts)

    def _marked(self) -> set[int]:
        marks = [f"{_MARK}={self._mark}".encode()]
        if run_id := self.run_id:
            marks.append(f"{Env.RUN_ID}={run_id}".encode())
        found = set()
        for pid in all_pids():
            environ = _environ(pid)
            if any(mark in environ for mark in marks) and not gone(pid):
                found.add(pid)
        with contextlib.suppress(OSError):  # those that overwrote their environment
            found |= {identity.pid for identity in holding(self.directory.alive).all}
        return found

    def _kill(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if pid in self._marked():  # looked at again with the pid pinned: it may be another's by now
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(fd)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Signal a process that may be gone; whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(pid: int, number: int) -> bool:
    """Signal every process of a worker's group, as clusters and terminals do; whether there was one."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int) -> bool:
    """Whether a process has ended, zombies included; not while one of its threads is held in the kernel."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0] in (b"Z", b"X") and int(fields[17]) <= 1


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children(pid: int) -> list[int]:
    """Direct children, over all threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return "gone"
