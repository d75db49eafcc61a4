"""Hooks: they run where the run directory does not let them write, and are none of an attempt's processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import wait_until

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor.hooks import TIMEOUT_SECONDS, Hooks
from outlast_supervisor.processes import send


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def started(hooks: Hooks, name: str = "done") -> int:
    assert hooks.start(name, "a\0reason", 0.0)
    return next(iter(hooks.pids))


def ended(hooks: Hooks, pid: int) -> int:
    """Wait for it as the loop does."""
    _, status = os.waitpid(pid, 0)
    hooks.ended(pid)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture
def background(run: Path) -> Iterator[list[int]]:
    """Processes that hooks left, ended when the test is."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if (identity := ProcessIdentity.of(pid)) is not None:
            send(identity, signal.SIGKILL)


def test_a_hook_writes_to_its_log_and_knows_why(run: Path) -> None:
    """The command runs in the run directory, with the occasion and the reason in its environment."""
    hooks = Hooks({"done": 'pwd; echo "$OUTLAST_HOOK: $OUTLAST_REASON" >&2'}, run)
    assert ended(hooks, started(hooks)) == 0
    assert (run / "logs" / "hooks.log").read_text() == f"{run}\ndone: a reason\n"


@pytest.mark.parametrize("broken", ["log", "run"])
def test_a_hook_runs_without_its_log(run: Path, broken: str, tmp_path: Path) -> None:
    """A run directory that cannot be written, or is gone, is no reason to tell nobody."""
    told = tmp_path / "told"
    if broken == "log":
        (run / "logs" / "hooks.log").mkdir()
    hooks = Hooks({"done": f"echo so > {told}"}, run if broken == "log" else run / "gone")
    assert ended(hooks, started(hooks)) == 0
    assert told.read_text() == "so\n"


def test_what_a_hook_leaves_in_the_background_is_its_own(run: Path, background: list[int]) -> None:
    """A process that a hook started and that outlives it is known as the hook's, also in another session."""
    hooks = Hooks({"done": "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid"}, run)
    assert ended(hooks, started(hooks)) == 0
    pid = int((run / "pid").read_text())
    background.append(pid)
    wait_until(lambda: hooks.theirs(pid), 60, "the exec of setsid")
    assert hooks.pids == frozenset()
    assert not Hooks({}, run).theirs(pid)  # of another supervisor
    assert not hooks.theirs(os.getpid())


def test_a_late_hook_is_named_again_after_a_moment_only(run: Path) -> None:
    """One that KILL does not end, since its disk is dead, keeps nobody busy."""
    hooks = Hooks({"done": "exec sleep 1000"}, run)
    pid = started(hooks)
    assert hooks.late(TIMEOUT_SECONDS - 1) == []
    assert hooks.late(TIMEOUT_SECONDS) == [pid]
    assert hooks.late(TIMEOUT_SECONDS) == []
    due = hooks.next_due()
    assert due is not None
    assert due > TIMEOUT_SECONDS
    assert hooks.late(due) == [pid]
    os.kill(pid, signal.SIGKILL)
    ended(hooks, pid)
