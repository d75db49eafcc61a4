"""What the tests of this folder share: the clusters, runs submitted to them, and what an operator does to a job."""

from __future__ import annotations

import copy
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.harness import OUTLAST, Run
from tests.e2e.reference import Reference, make_reference
from tests.slurm.cluster import Cluster, command
from tests.waiting import wait_until, whole_lines

from outlast_jobs.rundir import RunDirectory

T = TypeVar("T")

COUNTER = str(Path(__file__).resolve().parent / "scripts" / "counter.py")
PATIENCE = 150.0
"""Seconds: a job waits some for its turn, and all of them share two cores with other tests."""

OVER = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY")

_DEFAULT = "Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=1 State=UP"
_OTHER = "MaxTime=INFINITE DefaultTime=10 State=UP"
_PREEMPTED = f"{_OTHER} PriorityTier=1 PreemptMode=REQUEUE GraceTime=8"
_PREEMPTING = f"{_OTHER} PriorityTier=10 PreemptMode=OFF"
_CLUSTERS: Mapping[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "main": (
        ("n1", "n2", "k1", "s1", "s2", "t1", "t2", "p1"),
        f"PartitionName=main Nodes=<n1>,<n2> {_DEFAULT}\n"
        f"PartitionName=reboot Nodes=<k1> {_OTHER}\n"
        f"PartitionName=split Nodes=<s1>,<s2> {_OTHER}\n"
        f"PartitionName=torn Nodes=<t1>,<t2> {_OTHER}\n"
        f"PartitionName=low Nodes=<p1> {_PREEMPTED}\n"
        f"PartitionName=high Nodes=<p1> {_PREEMPTING}\n",
        {},
    ),
    # sites that let a preemption be announced in Slurm's own way: to steps alone
    "plain": (
        ("p1",),
        f"PartitionName=low Nodes=<p1> {_PREEMPTED} Default=YES\nPartitionName=high Nodes=<p1> {_PREEMPTING}\n",
        {"parameters": ""},
    ),
    # its controller is taken away
    "lonely": (("n1",), f"PartitionName=main Nodes=<n1> {_DEFAULT}\n", {}),
}


class Submitted:
    """A run, and the Slurm job that carries it."""

    def __init__(self, cluster: Cluster, run: Run, job: str) -> None:
        self.cluster, self.run, self.id = cluster, run, job

    @property
    def output(self) -> str:
        """What Slurm wrote of the job: the supervisor's messages, and slurmstepd's."""
        logs = sorted(self.run.folder.glob(f"run.slurm-{self.id}.log"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def facts(self) -> dict[str, str]:
        return self.cluster.job(self.id)

    def restarts(self) -> int:
        return int(self.facts().get("Restarts", -1))

    def until(self, condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Wait for a condition, but give up at once where the job is over; late, the error shows everything."""
        look_at = time.monotonic() + 1

        def look_again() -> tuple[T] | None:
            nonlocal look_at
            if time.monotonic() > look_at:
                look_at = time.monotonic() + 1
                if self.cluster.state(self.id) in OVER:
                    if value := condition():
                        return (value,)
                    raise AssertionError(f"the job ended before {what}\n{self.report()}")
            value = condition()
            return (value,) if value else None

        try:
            return wait_until(look_again, seconds, what)[0]  # type: ignore[index]
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.report()}") from None

    def report(self) -> str:
        """All that helps to see what went wrong."""
        told = self.cluster.slurm("scontrol", "show", "job", self.id, check=False)
        return f"{self.run.report()}\n{told}\n{self.output}\n{self.cluster.report()}"

    def until_state(self, *states: str) -> str:
        """Wait until Slurm says so; COMPLETING counts as not yet there."""
        return self.until(
            lambda: (found := self.cluster.state(self.id)) in states and found, " or ".join(states)
        )

    def until_restart(self, number: int) -> None:
        """Wait until the job runs for the so many-th time after the first."""

        def runs() -> bool:
            facts = self.facts()
            return facts.get("Restarts") == str(number) and facts.get("JobState") == "RUNNING"

        self.until(runs, f"restart {number}")

    def until_counted(self, step: int, attempt: int | None = None) -> None:
        """Wait until the counter counted so far, in this attempt or any."""

        def look_again() -> bool:
            return any(s >= step and attempt in (None, a) for s, a, _ in self.counted())

        self.until(look_again, f"step {step} counted in attempt {attempt}")

    def counted(self) -> list[tuple[int, int, str]]:
        """The counter's steps, as (step, attempt, host), in the order in which they were made."""
        lines = [line.split() for line in whole_lines(Path(f"{self.run.directory.path}.counted"))]
        return [(int(step), int(attempt), host) for step, attempt, host in lines]

    def supervisor(self) -> int:
        """The pid of the batch script's process, as numbered out here."""
        pid = self.supervisor_now()
        if pid is None:
            raise AssertionError(f"no supervisor\n{self.report()}")
        return pid

    def supervisor_now(self) -> int | None:
        """The same, or None: not yet there, or gone."""
        words = "outlast_supervisor.cli\0run\0"
        return next((pid for pid in self.cluster.batch(self.id) if words in command(pid)), None)

    def enough(self) -> None:
        """Tell the counter that the count is done."""
        Path(f"{self.run.directory.path}.enough").touch()

    def ends_in(self, seconds: float) -> None:
        """Move the job's end, as root may."""
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        self.cluster.slurm("scontrol", "update", f"jobid={self.id}", f"EndTime={end}")

    def ends(self, state: str = "COMPLETED", code: str = "0:0") -> None:
        """The job is over, not queued, and so it ended: Slurm's state, exit code and signal."""
        self.until_state(*OVER)
        facts = self.facts()
        if (facts["JobState"], facts["ExitCode"]) != (state, code):
            raise AssertionError(f"expected {state} with {code}\n{self.report()}")

    def warn(self) -> None:
        """What Slurm does at the warning: SIGUSR1 to the batch script's process alone."""
        self.cluster.slurm("scancel", "--signal=USR1", "--batch", self.id)

    def cap(self, seconds: float = 2.0) -> None:
        """The wall-clock cap, with a warning so long before."""
        self.ends_in(seconds)
        self.warn()


class Site:
    """The clusters, each started when it is first asked for, and all runs on them. Threads may share it."""

    def __init__(self, folder: Path, reference: Path) -> None:
        self.folder = folder
        self._reference = reference
        self._clusters: dict[str, Cluster] = {}
        self._runs: list[Run] = []
        self._followers: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def cluster(self, name: str = "main") -> Cluster:
        with self._lock:
            if name not in self._clusters:
                nodes, partitions, more = _CLUSTERS[name]
                self._clusters[name] = cluster = Cluster(self.folder / name, nodes, partitions, **more)
                cluster.start()
            return self._clusters[name]

    def make(self, name: str, job: Mapping[str, Any]) -> Run:
        """A run in a folder of its own, not submitted. Its name has what must be quoted."""
        run = Run(self.folder / f"{name} 50% 'ü'", job)
        with self._lock:
            self._runs.append(run)
        return run

    def submit(self, name: str, job: Mapping[str, Any], *args: str, cluster: str = "main") -> Submitted:
        """`outlast slurm --submit` of a run of its own."""
        return self.submit_run(self.make(name, job), *args, cluster=cluster)

    def submit_run(self, run: Run, *args: str, cluster: str = "main") -> Submitted:
        """The same for a run that is there."""
        place = self.cluster(cluster)
        run.env.update({key: place.env[key] for key in ("SLURM_CONF", "PATH")})
        done = run.cli("slurm", str(run.job_file), "--submit", "--quiet", *args)
        if done.code != 0 or done.err:
            raise AssertionError(f"not submitted: {done.code} {done.err}\n{place.report()}")
        return Submitted(place, run, done.out.strip())

    def submit_array(self, name: str, job: Mapping[str, Any], tasks: int, *args: str) -> list[Submitted]:
        """The same with `--array`: a run for each task."""
        array = self.submit(name, job, f"--array=0-{tasks - 1}", *args)
        found = []
        for task in range(tasks):
            run = copy.copy(array.run)
            run.directory = RunDirectory(run.folder / f"run-{task}")
            found.append(Submitted(array.cluster, run, f"{array.id}_{task}"))
        return found

    def reference(self) -> Reference:
        """The toy's undisturbed run; the end-to-end tests use the same."""
        return make_reference(self._reference)

    def follow(self, run: Run, into: Path) -> subprocess.Popen[bytes]:
        """`outlast logs -f`, until the run is done."""
        with into.open("xb") as file, into.with_suffix(".err").open("xb") as said:
            process = subprocess.Popen(
                [OUTLAST, "logs", "-f", str(run.directory.path)],
                env=run.env,
                stdout=file,
                stderr=said,
                cwd=run.folder,
            )
        self._followers.append(process)
        return process

    def close(self) -> None:
        for process in self._followers:
            process.kill()
            process.wait()
        for cluster in self._clusters.values():
            cluster.stop()
        for run in self._runs:
            run.close()


def counting(*args: object, **sections: Any) -> dict[str, Any]:
    """A job file for the counter."""
    command = ["{python}", COUNTER, *map(str, args)]
    return {"name": "count", "command": command, "save": {"every_steps": 10**6}, **sections}
