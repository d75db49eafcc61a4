"""The shortest whole run; with the whole of torch too, where other tests' trainings lack what they never call."""

from __future__ import annotations

import os
import signal

from tests.e2e.conftest import MakeRun


def test_a_run_that_nothing_disturbs_is_done(make_run: MakeRun, whole_torch: dict[str, str]) -> None:
    """An undisturbed run ends with 0, its last generation final, without a process left; half of torch does as much."""
    whole, half = (
        make_run({"command": ["{python}", "{scripts}/mini.py", "--steps", "30"]}, env=env)
        for env in (whole_torch, {})
    )
    for run in (whole, half):
        assert run.start().wait() == 0, run.report()
        assert run.verified()[0].index.final
        assert [line["step"] for line in run.history()] == list(range(1, 31))
        assert run.attempts() == [1]
        run.nothing_left()
    assert whole.verified()[0].index.state_sha256 == half.verified()[0].index.state_sha256


def test_a_worker_that_is_killed_is_restarted(make_run: MakeRun) -> None:
    """A worker that is killed is restarted, and the run carried to its end."""
    words = ["--steps", 60, "--step-seconds", 0.05]  # far from done when it is killed
    run = make_run({"command": ["{python}", "{scripts}/mini.py", *words], "save": {"every_steps": 10}})
    first = run.start()
    worker = first.worker()
    run.until_step(15)
    os.kill(worker, signal.SIGKILL)
    assert first.wait() == 0, run.report()
    assert run.attempts() == [1, 2]
    assert [line["step"] for line in run.history()] == list(range(1, 61))
    run.nothing_left()
