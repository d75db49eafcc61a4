"""A command that ends before what it started: said at once, with the cure, and never taken for a finished training."""

from __future__ import annotations

import shlex
import sys

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends
from tests.e2e.harness import SCRIPTS

from outlast_jobs.contract import ExitCode

TRAINS = shlex.join([sys.executable, str(SCRIPTS / "plain.py"), "--steps", "5000", "--seconds", "0.01"])
CURE = "have the command wait for what it starts"


def test_a_training_in_the_background_of_a_script_is_not_done(make_run: MakeRun) -> None:
    """`train.py &` and no wait: the script's exit 0 says nothing, so each try fails, and the cure is said."""
    restart = {"without_progress": 2, "waiting": "10ms", "backoff": "10ms..20ms"}
    run = make_run({"command": ["sh", "-c", "sleep 600 & exit 0"], "restart": restart})
    start = run.start()
    assert start.wait() == ExitCode.HELD, run.report()
    assert "the command exited 0, and what it had started did not end (pids " in start.output
    assert CURE in start.output
    assert [end["outcome"] for end in ends(run)] == ["crashed", "crashed"]
    assert all("what it had started went on" in end["reason"] for end in ends(run))
    run.nothing_left()


@pytest.mark.parametrize(("seconds", "told"), [("600", True), ("0.3", False)])
def test_a_bare_command_is_done_and_says_what_it_left(make_run: MakeRun, seconds: str, told: bool) -> None:
    """Without the library exit 0 is done; what goes on after it is named, and what ends with it is not."""
    run = make_run({"command": ["sh", "-c", f"sleep {seconds} & exit 0"], "signals": "native"})
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    assert (CURE in start.output) == told, start.output
    run.nothing_left()


FORKS = """
import os, runpy, signal, sys
import torch
signal.signal(signal.SIGTERM, lambda *_: None)
os.fork() and os._exit(0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_trainer_that_outlives_its_command_saves_and_the_run_is_not_done(make_run: MakeRun) -> None:
    """A script that puts itself into the background attaches after its command is gone: told, saved, not done."""
    job = {"command": [sys.executable, "train.py", *shlex.split(TRAINS)[1:]], "save": {"every_steps": 10000}}
    run = make_run(job, script=FORKS)
    start = run.start()
    run.until(lambda: ends(run), "the end of an attempt")
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    assert "a trainer attached after the command had ended: it is stopped" in start.output
    assert CURE in start.output
    saved = [found.index.step for found in run.verified() if found.index.attempt == 1]
    assert saved == [line["step"] for line in run.metrics(1)][-1:], (
        "no step was lost, be it that none was trained"
    )
    run.nothing_left()
