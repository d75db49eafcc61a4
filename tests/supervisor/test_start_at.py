"""The end of a backoff: what a start needs is done before, and the worker is executed at its time, never earlier."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.e2e.harness import gone
from tests.supervisor.tables import context, policy
from tests.supervisor.test_table import SAMPLES
from tests.waiting import wait_until

from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor import spawn
from outlast_supervisor.rules_begin import PREPARE
from outlast_supervisor.states import Choosing, Finished, Ledger, Waiting
from outlast_supervisor.table import decide
from outlast_supervisor.timers import next_due

WAITS = replace(SAMPLES[Waiting][0], until_at=100.0)


def test_a_start_is_prepared_in_the_last_moments_of_a_backoff() -> None:
    """The choice begins shortly before the backoff's end, and the worker's time is that end."""
    due = next_due(WAITS, policy(), 50.0)
    assert due is not None
    assert 100.0 - PREPARE <= due < 100.0
    early, nothing = decide(WAITS, ev.Tick(), context(due - 0.001))
    assert (early, nothing) == (WAITS, ())
    after, actions = decide(WAITS, ev.Tick(), context(due))
    assert isinstance(after, Choosing)
    assert [a.start_at for a in actions if isinstance(a, act.Choose)] == [100.0]


def test_a_start_asked_for_during_a_backoff_waits_for_nothing() -> None:
    """Who asks for a restart does not want the backoff."""
    _, actions = decide(WAITS, ev.RestartAsked("a person", "r1"), context(50.0))
    assert [a.start_at for a in actions if isinstance(a, act.Choose)] == [None]


@pytest.mark.parametrize("deadline", [100.0, 100.0 - PREPARE / 2])
def test_no_start_is_prepared_that_a_deadline_forestalls(deadline: float) -> None:
    """Where the known end comes before the backoff's end, or with it, no attempt is claimed."""
    state = replace(WAITS, ledger=Ledger(attempt=1, deadline=deadline, deadline_source="time_limit"))
    assert next_due(state, policy(), 50.0) == deadline
    assert decide(state, ev.Tick(), context(100.0 - PREPARE / 2 - 0.001))[0] == state
    assert isinstance(decide(state, ev.Tick(), context(deadline))[0], Finished)


def _order(tmp_path: Path, alive_fd: int, start_at: float) -> spawn.Order:
    command = ["touch", str(tmp_path / "ran")]
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    return spawn.Order(
        command, str(tmp_path), dict(os.environ), log, "header", alive_fd, frozenset(), start_at=start_at
    )


def test_a_worker_is_not_executed_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked ahead, it waits for the instant: the launch is told, by the exec, no earlier."""
    monkeypatch.setattr(spawn, "FORK_AHEAD", 5.0)
    start_at = time.monotonic() + 1.0
    read, alive = os.pipe()
    worker = spawn.launch(_order(tmp_path, alive, start_at))
    assert time.monotonic() >= start_at
    assert os.waitpid(worker.pid, 0)[1] == 0
    assert (tmp_path / "ran").exists()
    os.close(read)
    os.close(alive)


_LAUNCHES = """
import fcntl, os, sys, time
from pathlib import Path
from outlast_supervisor import spawn
folder = Path(sys.argv[1])
spawn.FORK_AHEAD = 5.0
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
fcntl.flock(lock, fcntl.LOCK_EX)
alive = os.open(folder / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
command = ["touch", str(folder / "ran")]
start_at = time.monotonic() + 5.0
spawn.launch(spawn.Order(
    command, str(folder), dict(os.environ), folder / "logs" / "log", "header", alive, frozenset(), start_at=start_at
))
"""


def test_a_supervisor_killed_while_its_child_waits_leaves_no_worker(tmp_path: Path) -> None:
    """What was forked ahead ends unexecuted where its supervisor is killed, and the run's lock is free."""
    (tmp_path / "logs").mkdir()
    parent = subprocess.Popen([sys.executable, "-c", _LAUNCHES, str(tmp_path)])
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    child = int(wait_until(listed.read_text, 30, "the forked child").split()[0])
    wait_until(lambda: _waits(child), 30, "the child in its wait")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: gone(child), 30, "the end of the child")
    assert not (tmp_path / "ran").exists()
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _waits(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
