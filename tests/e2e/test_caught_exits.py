"""A script that catches the exit with which its training was stopped, and leaves the training as if it were done."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import MakeRun

from outlast_jobs.contract import ExitCode

SCRIPT = """
import random, sys, threading, time
from outlast_worker import Checkpointer
ckpt = Checkpointer(model=None, draws=random.Random(1))
total = int(sys.argv[2])
def train():
    while ckpt.step_count < total:
        time.sleep(0.01)
        ckpt.step(loss=1.0, step=ckpt.step_count + (5 if sys.argv[1] == "jump" and ckpt.step_count == 20 else 1))
with ckpt:
    if sys.argv[1] == "thread":  # which takes the exit with it
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        try:
            train()
        except:
            print("caught")
print("after the training")
"""


@pytest.mark.parametrize("way", ["caught", "thread"])
def test_a_stop_that_the_script_has_caught_is_no_end_of_the_run(make_run: MakeRun, way: str) -> None:
    """What follows the training is not run, the run is not done, and goes on to its end at the next start."""
    run = make_run({"command": ["{python}", "train.py", way, "100000"]}, script=SCRIPT)
    start = run.start()
    run.until_step(10)
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    stopped = run.verified()[0].index
    assert stopped.step == run.metrics(1)[-1]["step"]
    assert not stopped.final
    run.write_job({"command": ["{python}", "train.py", way, str(stopped.step + 5)]})
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert run.verified()[0].index.step == stopped.step + 5
    assert "after the training" not in run.log(1)
    assert "after the training" in run.log(2)


def test_a_refusal_that_the_script_has_caught_seals_nothing(make_run: MakeRun) -> None:
    """Nor is the run done by it: what trains other steps than it says ends with the reason."""
    job = {"command": ["{python}", "train.py", "jump", "100"], "save": {"every_steps": 10}}
    run = make_run(job, script=SCRIPT)
    assert run.start().wait() == ExitCode.UNUSABLE, run.report()
    assert [g.name for g in run.generations()] == ["step-000000020.a0001", "step-000000010.a0001"]


SKIPPING = """
import time
import torch
from outlast_worker import Checkpointer, batches
with Checkpointer(model=None, data=batches(torch.ones(8, 1), 2)) as ckpt:
    for batch in ckpt.steps(100_000):
        try:
            time.sleep(0.01)
            ckpt.step(loss=1.0)
        except:
            print("skips a batch")
    print("after the loop")
"""


def test_a_script_that_skips_whatever_fails_ends_with_its_stop(make_run: MakeRun) -> None:
    """There is no next batch once the stop is saved: it would train and save on until the grace is over. Nor is the
    loop at its end: what follows it would be done with the weights of that step."""
    run = make_run({"command": ["{python}", "train.py"], "stop": {"grace": "600s"}}, script=SKIPPING)
    start = run.start()
    run.until_step(10)
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    assert run.log(1).count("skips a batch") == 1
    assert "after the loop" not in run.log(1)
    assert run.verified()[0].index.step == run.metrics(1)[-1]["step"]
