"""A soft limit on processor time is a notice, as a batch system's or `ulimit -St` gives it: nothing is lost to it."""

from __future__ import annotations

import resource
import signal

from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, plain, resumed

from outlast_jobs.contract import ExitCode


def test_a_limit_on_processor_time_loses_no_step(make_run: MakeRun) -> None:
    """The worker saves and is followed by one with time of its own; one that the supervisor hears of stops the run."""
    run = make_run(plain(steps=100_000, seconds=0.001, save={"every_steps": 1_000_000}))
    first = run.start()
    worker = first.worker()
    run.until_step(5)
    resource.prlimit(worker, resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))  # it has used that already
    run.until_step(1, attempt=2)
    assert [end["outcome"] for end in ends(run)] == ["saved"], run.report()
    assert "stopping after SIGXCPU" in run.log(1)
    assert resumed(run)[1] == f"step-{run.last_step(1):09d}.a0001"

    first.send(signal.SIGXCPU)
    assert first.wait() == ExitCode.SAVED, run.report()
    steps = [line["step"] for line in run.history()]
    assert steps == list(range(1, steps[-1] + 1))
    newest = run.verified()[0].index
    assert newest is not None
    assert newest.step == steps[-1]
    run.nothing_left()
