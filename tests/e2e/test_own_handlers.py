"""A script, or a library of its, that handles the stop signal itself after the Checkpointer was entered."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import SCRIPTS

from outlast_jobs.contract import ExitCode

SCRIPT = """
import runpy, signal, sys
from outlast_worker import Checkpointer
enter = Checkpointer.__enter__
def entered(self):
    found = enter(self)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    return found
Checkpointer.__enter__ = entered
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_stop_saves_where_the_script_took_its_signal(make_run: MakeRun) -> None:
    """The handler is taken back at the next boundary and that is told once: a stop loses no step."""
    words = ["--steps", "5000", "--seconds", "0.01"]
    job = {"command": ["{python}", "train.py", str(Path(SCRIPTS, "plain.py")), *words]}
    run = make_run({**job, "save": {"every_steps": 10000}}, script=SCRIPT)
    start = run.start()
    run.until_step(10)
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    assert run.verified()[0].index.step == run.metrics(1)[-1]["step"], "no step was lost"
    log = run.directory.attempt_log(1).read_text()
    assert log.count("something set a handler for SIGTERM") == 1
