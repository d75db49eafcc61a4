"""Supervisors inside a Slurm job that has only its tools, with a trainer of a few milliseconds."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run, Supervisor
from tests.schedulers.fake_slurm import FakeSlurm
from tests.waiting import whole_lines

WORKER = Path(__file__).with_name("scripts") / "light_worker.py"


def job(steps: int = 100_000, **more: Any) -> dict[str, Any]:
    command = [sys.executable, str(WORKER), str(steps)]
    return {"command": command, "stop": {"grace": "2s"}, "slurm": {"warn": "10s"}, **more}


def started(
    make_run: MakeRun, slurm: FakeSlurm, given: dict[str, Any] | None = None, **env: str
) -> Supervisor:
    """A supervisor in the job whose worker trains."""
    run: Run = make_run(given or job(), env=slurm.env(**env))
    supervisor = run.start()
    supervisor.until(lambda: run.records("attempt_attached"), "a trainer")
    slurm.say("pid", supervisor.pid)
    return supervisor


def saves(run: Run) -> list[tuple[str, float]]:
    return [(line.split()[0], float(line.split()[2])) for line in whole_lines(run.folder / "saved")]


def verdicts(run: Run) -> list[tuple[str, str]]:
    return [(r.data["how"], r.data["reason"]) for r in run.records("requeue")]


def leaving(make_run: MakeRun, slurm: FakeSlurm, requeue: str = "auto", **env: str) -> Supervisor:
    """A supervisor that a warning has just told to save and end."""
    asked = job(stop={"grace": "2s", "on_usr1": "stop"}, slurm={"requeue": requeue, "warn": "10s"})
    supervisor = started(make_run, slurm, asked, **env)
    supervisor.send(signal.SIGUSR1)
    return supervisor


def left(make_run: MakeRun, slurm: FakeSlurm, requeue: str = "auto", **env: str) -> Run:
    """The run of one that has ended so: exit 75, and nothing of it is left."""
    supervisor = leaving(make_run, slurm, requeue, **env)
    assert supervisor.wait() == 75, supervisor.run.report()
    supervisor.run.nothing_left()
    return supervisor.run
