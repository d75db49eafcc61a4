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


LINGERING = """
import os, pathlib, runpy, signal, sys, time
from outlast_worker import Checkpointer
step = Checkpointer.step
def stepped(self, *arguments, **more):
    step(self, *arguments, **more)
    if self.step_count == 18 and not pathlib.Path("tried").exists():
        pathlib.Path("tried").touch()
        self._session.land()
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
Checkpointer.step = stepped
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_launcher_may_start_a_trainer_anew(make_run: MakeRun) -> None:
    """What the killed one had forked lives on, and keeps the next one of the attempt not out; that goes on where the
    killed one had saved, and not where the attempt began."""
    train = shlex.join([sys.executable, "train.py", str(SCRIPTS / "plain.py"), "--steps", "30"])
    run = make_run(
        {"command": ["sh", "-c", f"{train} || {train}"], "save": {"every_steps": 5}}, script=LINGERING
    )
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    assert run.attempts() == [1]
    assert "resumed from step-000000015.a0001 at step 15 (bit-exact expected)" in run.log(1)
    assert "unprotected" not in start.output
    assert [line["step"] for line in run.history()] == list(range(1, 31))
    run.nothing_left()


NESTED = """
import random
from outlast_worker import Checkpointer
first, second = (Checkpointer(model=None, draws=random.Random(seed)) for seed in (1, 2))
with first, second:
    first.step()
"""


def test_a_second_checkpointer_of_one_process_is_refused(make_run: MakeRun) -> None:
    """Two would take each other's generations: it is said before the first step, with what to do."""
    run = make_run({"command": ["{python}", "train.py"], "restart": {"never_on": [1]}}, script=NESTED)
    assert run.start().wait() != ExitCode.DONE
    assert "give one of them all that trains" in run.log(1)
    assert run.generations() == []


AGAIN = """
import random, time
import torch
from outlast_worker import Checkpointer
for size in (64, 32):
    ckpt = Checkpointer(model=None, draws=random.Random(1))
    try:
        with ckpt:
            while ckpt.step_count < 30:
                if size == 64 and ckpt.step_count == 18:
                    raise torch.OutOfMemoryError("too large a batch")
                time.sleep(0.002)
                ckpt.step()
        break
    except torch.OutOfMemoryError:
        print("tries a smaller batch")
"""


def test_a_training_that_failed_may_be_tried_again_in_the_same_process(make_run: MakeRun) -> None:
    """A script that catches what it failed of, and enters another Checkpointer, goes on where it had saved."""
    job = {"command": ["{python}", "train.py"], "save": {"every_steps": 5}}
    run = make_run(job, script=AGAIN)
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    assert run.attempts() == [1]
    assert "resumed from step-000000015.a0001 at step 15" in run.log(1)
    assert "unprotected" not in start.output


def test_a_training_that_failed_of_a_nan_is_tried_again_from_before_it(make_run: MakeRun) -> None:
    """The next Checkpointer goes on from the newest healthy generation, not where the attempt began."""
    script = AGAIN.replace(
        "ckpt.step()", "ckpt.step(float('nan') if size == 64 and ckpt.step_count >= 12 else 1.0)"
    )
    job = {"command": ["{python}", "train.py"], "save": {"every_steps": 5}, "sick": "continue"}
    run = make_run(job, script=script)
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert run.attempts() == [1]
    assert "resumed from step-000000010.a0001 at step 10" in run.log(1)


def test_what_a_try_failed_of_is_not_told_of_a_later_end(make_run: MakeRun) -> None:
    """Killed after the next try had begun, the attempt was killed: the failure is got over."""
    script = AGAIN.replace(
        "time.sleep(0.002)",
        "time.sleep(0.002); size == 32 and ckpt.step_count == 25 and os.environ['OUTLAST_ATTEMPT'] == '1' and "
        "os.kill(os.getpid(), 9)",
    ).replace("import random", "import os, random")
    run = make_run({"command": ["{python}", "train.py"], "save": {"every_steps": 5}}, script=script)
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    assert "killed by SIGKILL, which was not ours" in start.output
    assert "OutOfMemoryError" not in start.output
    assert "may have died of too little memory" not in run.log(2)


def test_a_stop_between_two_tries_is_heard(make_run: MakeRun) -> None:
    """A script that has caught what its training failed of has its own handlers back: the stop ends it at once."""
    script = AGAIN + "        time.sleep(600)\n"
    job = {"command": ["{python}", "train.py"], "save": {"every_steps": 5}, "stop": {"grace": "600s"}}
    run = make_run(job, script=script)
    start = run.start()
    start.until(
        lambda: run.directory.attempt_log(1).exists() and "tries" in run.log(1), "the end of the first try"
    )
    start.process.terminate()
    assert start.wait() == ExitCode.SAVED, run.report()
    assert run.verified()[0].index.step == 15


RANKS = """
import os, random, sys
import torch.distributed
from outlast_worker import Checkpointer
rank = 0 if os.fork() else 1
store = torch.distributed.FileStore("store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
ckpt = Checkpointer(model=None, draws=random.Random(1))
try:
    with ckpt:
        ckpt.step()
finally:
    if rank == 0:
        os.wait()
"""


def test_ranks_that_the_environment_does_not_tell_of_are_refused(make_run: MakeRun) -> None:
    """A process group of two, made without WORLD_SIZE: each is told that one rank is no run, and nothing is saved."""
    run = make_run({"command": ["{python}", "train.py"], "restart": {"never_on": [1]}}, script=RANKS)
    assert run.start().wait() != ExitCode.DONE
    assert run.log(1).count("RuntimeError: cannot supervise 2 ranks of one run") == 2
    assert run.generations() == []
