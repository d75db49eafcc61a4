"""Of several processes that would train in one attempt the first does, and the others are told."""

from __future__ import annotations

import shlex
import sys

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import SCRIPTS

from outlast_jobs.contract import ExitCode


def test_a_second_trainer_of_one_attempt_is_refused_and_does_no_harm(make_run: MakeRun) -> None:
    """A script that starts two trainings at once: one is the run, the other ends with the reason and the cure."""
    train = shlex.join([sys.executable, str(SCRIPTS / "plain.py"), "--steps", "700", "--seconds", "0.015"])
    job = {"command": ["sh", "-c", f"{train} & {train} & wait"], "save": {"every_steps": 100}}
    run = make_run({**job, "keep": {"last": 50}})
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    log = run.directory.attempt_log(1).read_text(errors="replace")
    assert "another process trains this run; give each training a job of its own" in log
    assert run.attempts() == [1]
    assert [line["step"] for line in run.metrics(1)] == list(range(1, 701))
    assert "unprotected" not in start.output
