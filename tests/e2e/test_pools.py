"""A script with a pool of processes of its own, which lives to the script's end."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import MakeRun

from outlast_jobs.contract import ExitCode

SCRIPT = """
import multiprocessing, random, sys, time
from outlast_worker import Checkpointer
def work(busy):
    print("busy" if busy else "idle", flush=True)
    time.sleep(600 if busy else 0)
if __name__ == "__main__":
    method, how, busy = sys.argv[1:]
    ckpt = Checkpointer(model=None, draws=random.Random(1))
    with ckpt:
        pool = multiprocessing.get_context(method).Pool(2)
        pool.map(work, [False] * 4)
        if busy == "busy":
            pool.map_async(work, [True])
        while ckpt.step_count < 20 or how == "stop":
            time.sleep(0.01)
            ckpt.step()
        if how == "fail":
            raise ValueError("the training fails")
"""


@pytest.mark.parametrize(
    ("method", "how", "busy"),
    [("fork", "stop", "busy"), ("fork", "fail", "idle"), ("fork", "end", "idle"), ("spawn", "end", "busy")],
)
def test_a_pool_holds_up_no_end(make_run: MakeRun, method: str, how: str, busy: str) -> None:
    """Stopped, failed or done, the trainer ends by itself: its grace is not over, and nobody calls it a hang."""
    command = ["{python}", "train.py", method, how, busy]
    job = {"command": command, "stop": {"grace": "600s"}, "restart": {"never_on": [1]}}
    run = make_run(job, script=SCRIPT)
    start = run.start()
    if how == "stop":
        run.until_step(10)
        start.until(lambda: busy in run.log(1), "work of the pool")
        start.process.terminate()
    code = {"stop": ExitCode.SAVED, "fail": ExitCode.HELD, "end": ExitCode.DONE}[how]
    assert start.wait() == code, run.report()
    run.nothing_left()
