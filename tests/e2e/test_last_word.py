"""The end of a run: between the last save and the last word."""

from __future__ import annotations

import signal

from tests.e2e.conftest import MakeRun


def test_a_run_killed_before_its_last_word_is_completed(make_run: MakeRun) -> None:
    """Killed between its last save and its last word, a run does what follows the training, and is done."""
    run = make_run({"command": ["{python}", "{scripts}/last_word.py"]})
    assert run.start().wait() == -signal.SIGKILL
    assert run.generations()[0].name == "step-000000005.a0001"
    second = run.start()
    assert second.wait() == 0, run.report()
    assert "after the training" in run.log(2)
    assert [line["step"] for line in run.history()] == [1, 2, 3, 4, 5]
    assert run.start().wait() == 0
    assert run.attempts() == [1, 2]
    run.nothing_left()
