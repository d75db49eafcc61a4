"""The shortest whole run, with the whole of torch."""

from __future__ import annotations

import os
import signal

from tests.e2e.conftest import MakeRun

WHOLE_TORCH = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
"""The other tests start their trainings without the parts of torch that they do not use."""


def test_a_run_that_nothing_disturbs_is_done(make_run: MakeRun) -> None:
    """A run that nothing disturbs ends with 0, its last generation final, and leaves no process."""
    run = make_run({"command": ["{python}", "{scripts}/mini.py", "--steps", "30"]}, env=WHOLE_TORCH)
    first = run.start()
    assert first.wait() == 0, run.report()
    assert run.verified()[0].index.final
    assert [line["step"] for line in run.history()] == list(range(1, 31))
    assert run.attempts() == [1]
    run.nothing_left()


def test_a_worker_that_is_killed_is_restarted(make_run: MakeRun) -> None:
    """A worker that is killed is restarted, and the run carried to its end."""
    run = make_run(
        {"command": ["{python}", "{scripts}/mini.py", "--steps", "60"], "save": {"every_steps": 10}},
        env=WHOLE_TORCH,
    )
    first = run.start()
    worker = first.worker()
    run.until_step(15)
    os.kill(worker, signal.SIGKILL)
    assert first.wait() == 0, run.report()
    assert run.attempts() == [1, 2]
    assert [line["step"] for line in run.history()] == list(range(1, 61))
    run.nothing_left()
