"""A process that the script forks inside its training takes no part in the run."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import SCRIPTS

from outlast_jobs.contract import ExitCode

SCRIPT = """
import os, runpy, sys
from outlast_worker import Checkpointer
enter = Checkpointer.__enter__
def entered(self):
    found = enter(self)
    os.fork()
    return found
Checkpointer.__enter__ = entered
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_forked_child_that_trains_on_writes_nothing_of_the_run(make_run: MakeRun) -> None:
    """Its first boundary is an error that names both processes' roles; the trainer's steps are each there once."""
    words = ["--steps", "60", "--seconds", "0.01"]
    job = {"command": ["{python}", "train.py", str(Path(SCRIPTS, "plain.py")), *words]}
    run = make_run({**job, "save": {"every_steps": 10}, "keep": {"last": 50}}, script=SCRIPT)
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert run.attempts() == [1], "what ends the child fails no attempt"
    assert [line["step"] for line in run.metrics(1)] == list(range(1, 61))
    assert len(run.verified()) == len(run.generations()) >= 6, "no generation has files of two processes"
    assert "which was forked from the trainer: one process trains a run" in run.directory.attempt_log(
        1
    ).read_text(errors="replace")
