"""When a supervisor in a Slurm job asks for its end, with tools that are started in name only."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from outlast_supervisor import events as ev
from outlast_supervisor.schedulers import slurm_watch
from outlast_supervisor.schedulers.slurm import place
from outlast_supervisor.schedulers.slurm_watch import InSlurm
from outlast_supervisor.schedulers.tools import Outcome, Tools
from outlast_supervisor.schedulers.watch import Wires
from outlast_supervisor.states import Finished, Ledger

DOWN = Outcome("failed", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


class Clock:
    """What the watch sees instead of the time: it stands still where no test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.wall


@dataclass
class Watched:
    watch: InSlurm
    events: list[Any]
    known: list[float | None]
    clock: Clock
    asked: list[tuple[float, Callable[[Outcome], None]]] = field(default_factory=list)

    def answer(self, outcome: Outcome) -> None:
        self.asked[-1][1](outcome)

    def ends_in(self, seconds: int) -> Outcome:
        """The controller's answer that the job ends so many seconds from now."""
        return Outcome("ok", f"{int(self.clock.wall) + seconds} RUNNING")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    events: list[Any] = []
    known: list[float | None] = []
    loop: Any = SimpleNamespace(
        state=None, policy=SimpleNamespace(on_usr1="auto"), post=events.append, wake=lambda: None
    )
    deadlines: Any = SimpleNamespace(know=lambda source, at: known.append(at))
    wires = Wires(loop, deadlines, Any, lambda event, data: None, lambda text, level: None, "mark")  # type: ignore[arg-type]
    env = {"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "1"}
    clock = Clock()
    monkeypatch.setattr(slurm_watch, "time", clock)
    made = Watched(InSlurm(wires, place(env), env), events, known, clock)

    def start(
        self: Tools, words: Any, env: Any, now: float, seconds: float, then: Any, stdin: str = ""
    ) -> None:
        made.asked.append((seconds, then))

    monkeypatch.setattr(Tools, "start", start)
    return made


def test_an_end_that_is_not_told_is_asked_for_again(watched: Watched) -> None:
    """While the controller is down the question comes again, after 10 s doubling to 300 s, until it is answered."""
    watched.watch.ask()
    waits = []
    for _ in range(8):
        watched.clock.now += 1000
        watched.watch.idle(watched.clock.now)
        watched.answer(DOWN)
        waits.append((watched.watch.due() or 0.0) - watched.clock.now)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    watched.clock.now += 1000
    watched.watch.idle(watched.clock.now)
    watched.answer(watched.ends_in(500))
    assert watched.watch.due() is None
    assert watched.known[-1] == watched.clock.now + 500


def test_a_warning_waits_two_seconds_at_most(watched: Watched) -> None:
    """A warning is passed on with the answer, or after 2 s without; what comes meanwhile is the same warning."""
    watched.watch.warned("SIGUSR1")
    watched.watch.warned("SIGUSR1")
    assert [seconds for seconds, _ in watched.asked] == [2.0]
    watched.watch.idle(watched.clock.now + 1.9)
    assert not watched.events
    watched.watch.idle(watched.clock.now + 2.0)
    assert watched.events == [ev.Warned("SIGUSR1")]
    watched.answer(Outcome("late"))
    assert watched.events == [ev.Warned("SIGUSR1")]


def test_a_warning_is_not_answered_by_an_older_question(watched: Watched) -> None:
    """What was asked before the warning may not know of the preemption that it announces."""
    watched.watch.ask()
    watched.watch.idle(watched.clock.now)
    watched.watch.warned("SIGUSR1")
    watched.asked[0][1](watched.ends_in(5000))
    assert not watched.events
    assert not watched.known
    watched.asked[1][1](watched.ends_in(8))
    assert watched.events == [ev.Warned("SIGUSR1")]
    assert watched.known == [watched.clock.now + 8]


def test_what_is_told_after_the_notice_is_not_known_before_it(watched: Watched) -> None:
    """An answer that comes when the supervisor leaves already changes no verdict."""
    watched.watch.end = 5000.0
    watched.watch.heard(signal.SIGCONT)
    watched.watch.idle(watched.clock.now)
    watched.watch.wires.loop.state = Finished(Ledger(leaving="SIGTERM", leaving_of="signal"), 75, "")
    watched.answer(watched.ends_in(0))
    assert watched.watch.end == 5000.0


def test_a_clock_that_was_set_moves_no_end(watched: Watched) -> None:
    """The end is wall time, and is told anew when the clock jumps: what is left follows the right clock."""
    watched.watch.warned("SIGUSR1")
    watched.answer(watched.ends_in(500))
    watched.clock.wall += 400
    watched.watch.jumped()
    assert watched.known[-1] == watched.clock.now + 100
