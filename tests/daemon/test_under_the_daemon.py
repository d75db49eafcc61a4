"""A training under a daemon that is killed like everything else: it ends as the undisturbed one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import yaml
from tests.daemon.yard import Yard
from tests.e2e.harness import Run, children
from tests.e2e.reference import Reference, toy

from outlast_jobs.contract import Env

KILLS = ("daemon", "worker", "daemon", "supervisor")


def worker_of(supervisor: int) -> int:
    """The pid of the attempt's first process."""
    mark = f"{Env.ATTEMPT}=".encode()
    return next(pid for pid in children(supervisor) if mark in environ(pid))


def environ(pid: int) -> bytes:
    """Of a process that may have ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def test_killed_under_a_daemon_it_is_the_same_run(
    yard: Yard, reference: Reference, instants: random.Random
) -> None:
    """Daemon, worker and supervisor are killed in turn; the run ends bit-identical, in as few attempts as can be."""
    slowly = ("--step-seconds", 0.015)  # so that it is not done before the last kill
    quick = {"backoff": "10ms..50ms"}
    run = Run(yard.home / "run", toy(*slowly, save={"every_steps": 25}, restart=quick))
    job = yaml.safe_load(run.job_file.read_text())
    job["run_dir"] = str(run.directory.path)
    (yard.folder / "toy.yaml").write_text(yaml.safe_dump(job))
    yard.start()
    for number, what in enumerate(KILLS, 1):
        step = 60 * number + instants.randrange(40)
        yard.until(lambda step=step: (run.last_step() or 0) >= step, f"step {step}")
        if what == "daemon":
            yard.kill_daemon()
            yard.start()
            continue
        supervisor = yard.supervisors()["run"].pid
        os.kill(supervisor if what == "supervisor" else worker_of(supervisor), signal.SIGKILL)
    yard.until(lambda: yard.states() == {"toy": "done"}, "the end", 150)
    assert run.attempts() == [1, 2, 3], "the end of a daemon costs no attempt"
    reference.hold_end(run)
