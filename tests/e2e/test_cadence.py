"""Saves come when they are due: never later by more than a step, and never in a burst.

Times are those that the worker noted right before and right after each boundary, on the monotonic clock: what it
decided there it decided between the two, however busy the machine is, and wherever it is stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import only, outcomes, plain, resumed
from tests.e2e.harness import SCRIPTS, Run, Supervisor

from outlast_jobs.contract import ExitCode

MANY = {"last": 10_000}


class Saves:
    """The saves of one attempt, and when each of its boundaries was."""

    def __init__(self, run: Run, attempt: int = 1) -> None:
        lines = run.metrics(attempt)
        self.before = {line["step"]: line["mono"] for line in lines}
        self.after = {line["step"] - 1: line["back"] for line in lines}
        self.after[lines[-1]["step"]] = math.inf
        self.report = run.report
        found = [f.index for f in run.findings() if f.index.attempt == attempt and not f.index.final]
        self.reasons = {index.step: index.reason for index in found}
        self.steps = sorted(self.reasons)
        self.longest = max(index.save_seconds for index in found)
        self.first, self.last = min(self.before), max(self.before)

    def never_late(self, seconds: float, young: float | None = None, saving: float = 0.1) -> None:
        """At no boundary but the one that was saved had the interval passed; another one up to the first save.

        A save in flight is waited for, which takes its time, and ``saving`` seconds for what is told of it.
        """
        for last, at in itertools.pairwise([self.first - 1, *self.steps, self.last + 1]):
            limit = seconds if young is None or last >= self.first else young
            if at - 1 > last:
                assert self.before[at - 1] - self.after[last] < limit + self.longest + saving, (
                    f"{last} to {at}: {self.report()}"
                )

    def no_burst(self, seconds: float) -> None:
        """No two saves are closer than the interval."""
        for last, at in itertools.pairwise(self.steps):
            assert self.since(last, at) >= seconds, f"{last} to {at}: {self.report()}"

    def since(self, last: int, at: int) -> float:
        """Seconds between two boundaries, of the longest that it may have been."""
        return self.after[at] - self.before[last]


def undisturbed(run: Run) -> Saves:
    """The saves of a run that is done in one attempt, and whose supervisor had nothing to say about them."""
    assert outcomes(run) == ["done"], run.report()
    assert run.records("violation", "hung", "unprotected") == []
    return Saves(run)


def test_seconds_with_slow_steps(make_run: MakeRun) -> None:
    """With steps that take a good part of the interval each save is at the first boundary past it."""
    run = make_run(plain(steps=9, seconds=0.4, save={"every_seconds": "1s"}, keep=MANY))
    assert run.start().wait() == ExitCode.DONE, run.report()
    saves = undisturbed(run)
    saves.never_late(1)
    saves.no_burst(1)
    assert set(saves.reasons.values()) == {"every 1 s"}
    assert len(saves.steps) >= 2


def test_steps_of_a_millisecond(make_run: MakeRun) -> None:
    """With very quick steps, and no digests, exactly the multiples are saved, and nobody asks for more."""
    run = make_run(
        plain("--digest-every", 0, steps=1150, seconds=0.001, save={"every_steps": 100}, keep=MANY)
    )
    assert run.start().wait() == ExitCode.DONE, run.report()
    saves = undisturbed(run)
    assert saves.steps == list(range(100, 1101, 100))
    assert set(saves.reasons.values()) == {"every 100 steps"}
    assert all("rng" not in line for line in run.metrics(1))


def test_steps_and_seconds_whichever_comes_first(make_run: MakeRun) -> None:
    """Quick steps are saved by count and slow ones by time."""
    quick_then_slow = ",".join(["0.001"] * 100 + ["0.15"] * 10)
    run = make_run(
        plain(
            *("--digest-every", 0),
            steps=220,
            seconds=quick_then_slow,
            save={"every_steps": 40, "every_seconds": "600ms"},
            keep=MANY,
        )
    )
    assert run.start().wait() == ExitCode.DONE, run.report()
    saves = undisturbed(run)
    saves.never_late(0.6)
    by_count = {step for step, reason in saves.reasons.items() if reason == "every 40 steps"}
    assert {40, 80, 120, 160, 200} <= by_count | {step for step in saves.steps if step % 40 == 0}
    by_time = sorted(set(saves.steps) - by_count)
    assert by_time, "the slow steps"
    for step in by_time:
        assert saves.reasons[step] == "every 0.6 s"
        assert saves.since(max([s for s in saves.steps if s < step], default=saves.first), step) >= 0.8 * 0.6


def test_the_first_save_after_a_restart_comes_sooner(make_run: MakeRun) -> None:
    """Young nodes fail most: a quarter of the interval after a restart, then the whole one again."""
    run = make_run(plain(steps=400, seconds=0.01, save={"every_seconds": "1600ms"}, keep=MANY))
    first = run.start()
    first.until(lambda: run.generations(), "a first generation")
    os.kill(first.worker(), signal.SIGKILL)
    assert first.wait() == ExitCode.DONE, run.report()
    assert len(resumed(run)) == 2
    older = Saves(run, 1)
    older.no_burst(1.6)
    saves = Saves(run, 2)
    young, *rest = saves.steps
    assert saves.reasons[young] == "every 0.4 s for the first save after a restart"
    assert saves.since(saves.first, young) >= 0.8 * 0.4
    saves.never_late(1.6, young=0.4)
    assert {saves.reasons[step] for step in rest} == {"every 1.6 s"}
    saves.no_burst(1.6)


@contextlib.contextmanager
def stopped(pid: int, seconds: float) -> Iterator[None]:
    """A process stands still for so long."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


STANDSTILL = 3.1
"""Right after a seal: past the request that an overdue save brings (2.1 s), before a second one (4.2 s)."""


@pytest.mark.parametrize(("who", "steps"), [("worker", 350), ("supervisor", 600)])
def test_a_standstill_brings_neither_a_burst_nor_a_miss(make_run: MakeRun, who: str, steps: int) -> None:
    """Stopped for longer than the interval, either of the two goes on as if nothing had been missed."""
    run = make_run(plain(steps=steps, seconds=0.01, save={"every_seconds": "1s"}, keep=MANY))
    first = run.start()
    worker = first.worker()
    first.until(lambda: run.generations(), "a first generation")
    with stopped(worker if who == "worker" else first.pid, STANDSTILL):
        before = run.generations()[0].name
    first.until(lambda: run.generations()[0].name != before, "the next generation")
    assert first.wait() == ExitCode.DONE, run.report()
    saves = undisturbed(run)
    saves.never_late(1, saving=1)
    saves.no_burst(1)
    if who == "supervisor":
        assert set(saves.reasons.values()) == {"every 1 s"}, "it was not asked for any"
    newest = run.generations()[0].name
    assert newest in {record.data["generation"] for record in run.records("verified")}


def test_time_stands_still_for_a_run_that_the_terminal_stops(make_run: MakeRun) -> None:
    """Ctrl-Z stops the worker too; afterwards nothing is overdue, nothing hangs, and it trains on."""
    run = make_run(
        plain(steps=350, seconds=0.01, save={"every_seconds": "1s"}, keep=MANY, hang={"min": "3s"})
    )
    first = run.start()
    worker = first.worker()
    first.until(lambda: run.generations(), "a first generation")
    first.send(signal.SIGTSTP)
    for pid in (worker, first.pid):
        run.until(lambda pid=pid: state_of(pid) == "T", "a stopped process")
    time.sleep(STANDSTILL)
    first.send(signal.SIGCONT)
    assert first.wait() == ExitCode.DONE, run.report()
    saves = undisturbed(run)
    saves.never_late(1)
    saves.no_burst(1)
    assert set(saves.reasons.values()) == {"every 1 s"}
    assert only(run.records("paused")).data["seconds"] >= STANDSTILL


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


FAILS_ONCE = "[ -e once ] && exit 0; touch once; exit 1"


def waits(make_run: MakeRun, delay: str) -> tuple[Run, Supervisor]:
    """A supervisor that waits between two attempts."""
    restart = {"backoff": f"{delay}..{delay}"}
    run = make_run({"command": ["sh", "-c", FAILS_ONCE], "signals": "native", "restart": restart})
    first = run.start()
    first.until(lambda: run.records("attempt_ended"), "the end of the first attempt")
    return run, first


def test_a_delay_stands_still_with_a_run_that_the_terminal_stops(make_run: MakeRun) -> None:
    """After Ctrl-Z what was left of a delay is still waited for, though the clock went on."""
    run, first = waits(make_run, "3s")
    first.send(signal.SIGTSTP)
    run.until(lambda: state_of(first.pid) == "T", "a stopped process")
    time.sleep(STANDSTILL)
    first.send(signal.SIGCONT)
    assert first.wait() == ExitCode.DONE, run.report()
    paused, ended = only(run.records("paused")), run.records("attempt_ended")[0]
    assert paused.data["seconds"] >= STANDSTILL
    waited = paused.mono - paused.data["seconds"] - ended.mono
    left = ended.data["counters"]["waited"] - waited
    assert run.records("attempt_started")[1].mono - paused.mono >= 0.9 * left


def test_a_supervisor_that_stood_still_does_not_wait_all_over_again(make_run: MakeRun) -> None:
    """Stopped within a delay it goes on with what is left of it, and says for how long it stood still."""
    run, first = waits(make_run, "6s")
    ended = run.records("attempt_ended")[0].mono
    first.until(lambda: time.monotonic() - ended > 4, "most of the delay")
    with stopped(first.pid, 4.5):
        pass
    assert first.wait() == ExitCode.DONE, run.report()
    paused = only(run.records("paused"))
    assert 2 <= paused.data["seconds"] <= paused.mono - ended + 0.001, "told to a millisecond"
    again = run.records("attempt_started")[1]
    assert again.mono - paused.mono < 5, "two seconds of the delay were left"


def test_a_clock_that_jumps_brings_neither_a_burst_nor_a_miss(make_run: MakeRun) -> None:
    """A year back and a day on, in worker and supervisor: each is told once, and changes nothing else."""
    year, day = 365 * 86_400, 86_400
    run = make_run(
        plain(steps=400, seconds=0.01, save={"every_seconds": "1s"}, keep=MANY, hang={"min": "3s"})
    )
    offset = run.folder / "offset"
    offset.write_text("0")
    path = os.pathsep.join(filter(None, [str(SCRIPTS / "clockwork"), os.environ.get("PYTHONPATH")]))
    first = run.start(env={"PYTHONPATH": path, "CLOCK_OFFSET": str(offset)})
    for step, seconds in ((30, -year), (120, day)):
        run.until_step(step)
        (run.folder / "offset.new").write_text(str(seconds))
        os.replace(run.folder / "offset.new", offset)
    assert first.wait() == ExitCode.DONE, run.report()
    jumps = [record.data["seconds"] for record in run.records("clock_jumped")]
    assert jumps == [pytest.approx(-year, abs=60), pytest.approx(year + day, abs=60)]
    saves = undisturbed(run)
    saves.never_late(1)
    saves.no_burst(1)
    assert set(saves.reasons.values()) == {"every 1 s"}
    assert [line["step"] for line in run.history()] == list(range(1, 401))
    run.nothing_left()
