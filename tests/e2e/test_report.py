"""`outlast report` of a real run that was killed: its figures are those that the files of the run add up to."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from tests.e2e.conftest import MakeRun

STANDSTILL = 3.0  # seconds


def test_a_report_tells_what_a_kill_has_cost(make_run: MakeRun) -> None:
    """While it runs and when it is done: steps that count are the history's, those lost are what the kill took."""
    words = ["--steps", 60, "--step-seconds", 0.05]
    run = make_run({"command": ["{python}", "{scripts}/mini.py", *words], "save": {"every_steps": 10}})
    first = run.start()
    worker = first.worker()
    run.until_step(15)
    os.kill(worker, signal.SIGKILL)
    run.until_step(25, 2)
    live = json.loads(run.cli("report", "--json", str(run.directory.path)).out)
    assert live["state"].startswith("running")
    assert live["attempts"][-1]["ended"] is None
    assert first.wait() == 0, run.report()
    ended = run.cli("report", str(run.directory.path))
    assert ended.code == 0
    page = (run.folder / "e2e.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    found = json.loads(run.cli("report", "--json", str(run.directory.path)).out)
    lost = len(run.metrics(1)) + len(run.metrics(2)) - 60
    assert found["steps"] == {"kept": 60, "lost": lost}
    assert [one["outcome"] for one in found["attempts"]] == ["crashed_progress", "done"]
    assert sum(found["seconds"].values()) - (found["until"] - found["began"]) < 0.01
    assert 0 < found["goodput"] < found["goodput_of_up"] < 1
    assert found["seconds"]["kept"] >= 60 * 0.05 - 0.1


def test_a_run_that_was_suspended_did_not_train_meanwhile(make_run: MakeRun) -> None:
    """What it stood still is down, and no goodput, though the attempt was there."""
    words = ["--steps", 40, "--step-seconds", 0.02]
    run = make_run({"command": ["{python}", "{scripts}/mini.py", *words], "save": {"every_steps": 10}})
    first = run.start()
    worker = first.worker()
    run.until_step(10)
    first.send(signal.SIGTSTP)
    for pid in (worker, first.pid):
        run.until(
            lambda pid=pid: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(), "a stopped process"
        )
    time.sleep(STANDSTILL)
    first.send(signal.SIGCONT)
    assert first.wait() == 0, run.report()
    found = json.loads(run.cli("report", "--json", str(run.directory.path)).out)
    assert found["seconds"]["down"] >= STANDSTILL
    assert sum(found["seconds"].values()) - (found["until"] - found["began"]) < 0.01
