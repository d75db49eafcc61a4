"""`outlast run` inside a Slurm job: it knows the end, asks again when it is warned, and is queued again at the end."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.fake_slurm import FakeSlurm
from tests.e2e.harness import SCRIPTS, Run, Supervisor

WORKER = SCRIPTS / "light_worker.py"


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


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
    path = run.folder / "saved"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line.split()[0], float(line.split()[2])) for line in lines]


def verdicts(run: Run) -> list[tuple[str, str]]:
    return [(r.data["how"], r.data["reason"]) for r in run.records("requeue")]


def test_warned_near_the_end(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """USR1 with a near end: it trains on to the last boundary that fits, saves, and is queued again."""
    supervisor = started(make_run, slurm)
    run = supervisor.run
    slurm.say("end", int(time.time()) + 6)
    begun = time.time()
    supervisor.send(signal.SIGUSR1)
    assert supervisor.wait() == 75, run.report()
    [(why, at)] = saves(run)
    assert why == "stop", run.report()
    assert at > begun + 2, run.report()
    [(how, reason)] = verdicts(run)
    assert how == "requeue", run.report()
    assert "the deadline (the end of Slurm job 7)" in reason, run.report()
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 7"]
    assert [r.data["ok"] for r in run.records("requeued")] == [True]
    assert (run.status() or {})["requeue"] == "Slurm job 7: queued again"


def test_warned_far_from_the_end(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """USR1 with a far end: it saves and goes on."""
    slurm.say("end", int(time.time()) + 5000)
    supervisor = started(make_run, slurm)
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: saves(supervisor.run), "a save")
    assert [why for why, _ in saves(supervisor.run)] == ["save"]
    assert supervisor.running()


def test_a_cancelled_job_stays_cancelled(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """TERM long before the end is a cancel: saved, exit 75, and not queued again."""
    slurm.say("end", int(time.time()) + 5000)
    supervisor = started(make_run, slurm)
    supervisor.until(lambda: supervisor.run.records("deadline"), "the end to be known")
    slurm.say("end", int(time.time()))
    slurm.say("state", "COMPLETING")
    supervisor.send(signal.SIGCONT)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    [(how, reason)] = verdicts(supervisor.run)
    assert how == "none", reason
    assert "cancel" in reason
    assert not slurm.calls("scontrol requeue")
    assert not slurm.calls("sbatch")
