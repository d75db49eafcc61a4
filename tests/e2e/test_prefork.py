"""The next worker is forked while the present one runs, and is nothing else's until it has its place."""

from __future__ import annotations

import signal

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import QUICK, Run, Supervisor, children, gone, kill

from outlast_jobs.contract import ExitCode

JOB = {"command": ["{python}", "{scripts}/standing.py"], "restart": {**QUICK, "without_progress": 50}}


def waiting(supervisor: Supervisor, worker: int) -> int:
    """The child of a supervisor that is not its worker; waits for it."""
    return supervisor.until(
        lambda: next((pid for pid in children(supervisor.pid) if pid != worker and not gone(pid)), None),
        "the process that is forked ahead",
    )


def trains(run: Run, attempt: int) -> int:
    """The pid of an attempt's worker, once it has attached."""
    status = run.until_status(
        lambda s: s["attempt"] == attempt and s["state"] == "running", f"attempt {attempt} that trains"
    )
    return int(status["worker"])


def test_what_was_forked_ahead_becomes_the_next_worker(make_run: MakeRun) -> None:
    """Each worker is the process that waited beside the one before; at the end none is left."""
    run = make_run(JOB)
    supervisor = run.start()
    worker = trains(run, 1)
    for attempt in (2, 3, 4):
        next_one = waiting(supervisor, worker)
        assert next_one not in run.of_attempts()
        for number in (signal.SIGTERM, signal.SIGUSR1):  # what a cluster sends to all is not for it
            kill(next_one, number)
        kill(worker)
        worker = trains(run, attempt)
        assert worker == next_one
        assert worker in run.of_attempts()
    next_one = waiting(supervisor, worker)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    assert gone(next_one)
    run.nothing_left()


def test_it_is_nobodys_leftover(make_run: MakeRun) -> None:
    """A supervisor that is killed takes it along; the next one finds its worker and nothing else."""
    run = make_run(JOB)
    first = run.start()
    next_one = waiting(first, trains(run, 1))
    first.kill()
    run.until(lambda: gone(next_one), "its end")
    second = run.start()
    trains(run, 2)
    assert str(next_one) not in second.output
    second.send(signal.SIGTERM)
    assert second.wait() == ExitCode.SAVED, run.report()
    run.nothing_left()


def test_one_that_is_killed_or_stopped_costs_nothing_but_time(make_run: MakeRun) -> None:
    """Without it a worker's successor is a process forked at that moment, and there is never a second one."""
    run = make_run(JOB)
    supervisor = run.start()
    worker = trains(run, 1)
    next_one = waiting(supervisor, worker)
    kill(next_one)
    run.until(lambda: gone(next_one), "its end")  # with its place it would be a worker that was killed
    kill(worker)
    worker = trains(run, 2)
    next_one = waiting(supervisor, worker)
    kill(next_one, signal.SIGSTOP)
    kill(worker)
    assert trains(run, 3) != next_one
    assert gone(next_one)
    assert run.attempts() == [1, 2, 3]
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    run.nothing_left()
