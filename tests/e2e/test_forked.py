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


AFTER = """
import os, random, sys, time
from outlast_worker import Checkpointer
ckpt = Checkpointer(model=None, draws=random.Random(1))
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with ckpt:
    while ckpt.step_count < 100000:
        time.sleep(0.01)
        ckpt.step(loss=1.0)
"""


def test_a_process_forked_before_the_training_is_the_trainer(make_run: MakeRun) -> None:
    """It speaks and hears for itself, though the Checkpointer was made before the fork: a stop saves."""
    run = make_run({"command": ["{python}", "train.py"]}, script=AFTER)
    start = run.start()
    run.until_status(lambda status: (status.get("step") or 0) >= 10, "step 10 in the status")
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    assert run.verified()[0].index.step == run.metrics(1)[-1]["step"]


IN_FLIGHT = """
import ctypes, os, signal, threading
import torch
from outlast_worker import Checkpointer, sources
sources.REHEARSALS = 0
held, free, copy = threading.Event(), threading.Event(), ctypes.memmove
def memmove(*arguments):
    if threading.current_thread().name == "outlast-save":
        held.set()
        free.wait()
    return copy(*arguments)
ctypes.memmove = memmove
model = torch.nn.Linear(30, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ckpt = Checkpointer(model=model, optimizer=optimizer)
with ckpt:
    while ckpt.step_count < 20:
        model(torch.ones(30)).sum().backward()
        optimizer.step()
        ckpt.step()
        ckpt._session.seals.meanwhile.buffers.settled()
        if ckpt._session.seals.meanwhile.flight is not None and not free.is_set():
            held.wait()
            if (child := os.fork()) == 0:
                signal.alarm(30)
                optimizer.step()
                os._exit(0)
            print("the child ended with", os.waitpid(child, 0)[1])
            free.set()
"""


def test_a_child_that_is_forked_during_a_save_waits_for_no_thread_of_it(make_run: MakeRun) -> None:
    """It may step the optimizer: the copy that this would wait for is its parent's, and so is the memory for it."""
    run = make_run({"command": ["{python}", "train.py"], "save": {"every_steps": 5}}, script=IN_FLIGHT)
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert "the child ended with 0" in run.log(1)
    assert len(run.verified()) == len(run.generations()) > 0
