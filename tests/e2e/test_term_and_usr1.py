"""What clusters and terminals send, to the supervisor or to everybody: nothing is lost and nothing dies of it."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from typing import Literal

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run, Supervisor, children, gone, kill_group
from tests.e2e.reference import STEPS, Reference, pause, toy

Target = Literal["supervisor", "group"]

DELAYS = (0.0, 0.02, 0.2, 0.6)
"""Seconds after the worker's start: all of them while it still imports."""
NEVER = {"every_steps": 10 * STEPS}
"""Only what is asked for is saved."""
MOMENT = 0.1


@dataclass
class Life:
    """The run's present supervisor and its present attempt."""

    run: Run
    supervisor: Supervisor
    worker: int = 0

    def next_attempt(self) -> int:
        """Wait for the next worker; the number of its attempt."""
        old = self.worker
        self.worker = self.supervisor.until(lambda: self._new(old), "the next worker")
        return self.run.until(lambda: self.run.attempts() and self.run.attempts()[-1], "a log")

    def send(self, number: int, target: Target) -> None:
        """To the supervisor alone, or to the worker and every process that it started."""
        if target == "supervisor":
            self.supervisor.send(number)
        else:
            assert kill_group(self.worker, number)

    def end_of_attempt(self, target: Target) -> None:
        """After a TERM: the supervisor ends with 75 and is started again, or starts the next worker itself."""
        if target == "supervisor":
            assert self.supervisor.wait() == 75, self.run.report()
            self.run.nothing_left()
            self.supervisor = self.run.start()
        else:
            self.supervisor.until(lambda: gone(self.worker), "the worker's end")

    def sealed(self, attempt: int) -> dict[int, str]:
        """Step and reason of each generation of an attempt."""
        return {
            f.index.step: f.index.reason
            for f in self.run.verified()
            if f.index is not None and f.index.attempt == attempt
        }

    def _new(self, old: int) -> int | None:
        found = self.supervisor.worker_now()
        return found if found != old else None


def restored_step(run: Run, attempt: int) -> int:
    [started] = [r for r in run.records("attempt_started") if r.data["attempt"] == attempt]
    return int(started.data["step"])


@pytest.mark.timeout(900)
def test_term_and_usr1_at_any_time_lose_nothing(
    make_run: MakeRun, reference: Reference, instants: random.Random
) -> None:
    """USR1 while importing brings one save, TERM loses no step, to whomever they go; the run ends the same."""
    run = make_run(toy(save=NEVER, keep={"last": 100}))
    life = Life(run, run.start())
    for delay in DELAYS:
        for target, ender in (("supervisor", "group"), ("group", "supervisor")):
            attempt = life.next_attempt()
            pause(delay)
            life.send(signal.SIGUSR1, target)
            sent = time.time()
            run.until_step(1, attempt)
            assert run.attempts()[-1] == attempt, f"USR1 ended the attempt\n{run.report()}"
            run.until(lambda a=attempt: "asked for" in life.sealed(a).values(), "the save that was asked for")
            pause(instants.uniform(0, MOMENT))
            life.send(signal.SIGTERM, ender)
            life.end_of_attempt(ender)

            sealed, begin = life.sealed(attempt), restored_step(run, attempt)
            assert max(sealed) == run.last_step(attempt), f"TERM lost steps\n{run.report()}"
            assert list(sealed.values()).count("asked for") == 1, sealed
            if target == "group" and sent < run.metrics(attempt)[0]["t"]:  # so it was before that boundary
                assert sealed.get(begin + 1) == "asked for", (begin, sealed)
    assert life.supervisor.wait() == 0, run.report()
    assert "Traceback" not in run.log()
    for finding in run.verified():
        reference.hold_state(finding)
    reference.hold_end(run)


def test_term_while_importing_is_no_failure(
    make_run: MakeRun, reference: Reference, instants: random.Random
) -> None:
    """TERM before a trainer attached ends the worker with nothing to save; it counts as preempted."""
    run = make_run(toy(save={"every_steps": 50}))
    life = Life(run, run.start())
    for target in ("group", "supervisor", "group", "supervisor"):
        life.next_attempt()
        pause(instants.uniform(0, 0.5))
        life.send(signal.SIGTERM, target)
        life.end_of_attempt(target)
    assert life.supervisor.wait() == 0, run.report()
    ended = run.records("attempt_ended")
    assert [r.data["outcome"] for r in ended] == ["saved"] * 4 + ["done"], run.report()
    assert ended[-1].data["counters"]["preempted"] == 4
    reference.hold_end(run)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_loaders_of_every_kind_survive_what_goes_to_all(
    make_run: MakeRun, reference: Reference, start_method: str
) -> None:
    """USR1 and TERM to the whole group reach the trainer alone, however its loader processes start."""
    run = make_run(toy("--start-method", start_method, save=NEVER, keep={"last": 100}))
    life = Life(run, run.start())
    attempt = life.next_attempt()
    run.until_step(3, attempt)
    loaders = children(life.worker)
    assert len(loaders) >= 2
    life.send(signal.SIGUSR1, "group")
    run.until(lambda: "asked for" in life.sealed(attempt).values(), "the save that was asked for")
    assert not any(map(gone, loaders)), run.report()
    life.send(signal.SIGTERM, "group")
    life.end_of_attempt("group")
    [ended] = run.until(lambda: run.records("attempt_ended"), "the record of its end")
    assert (ended.data["code"], ended.data["outcome"]) == (75, "saved"), run.report()
    assert max(life.sealed(attempt)) == run.last_step(attempt)
    life.supervisor.send(signal.SIGTERM)
    assert life.supervisor.wait() == 75, run.report()
    assert "Traceback" not in run.log()
    for finding in run.verified():
        reference.hold_state(finding)
    reference.hold_lines(run)
    run.nothing_left()
