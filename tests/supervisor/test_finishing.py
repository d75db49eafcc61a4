"""The save of a dead worker is finished by a process of its own, in the time that there is, or told why not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.supervisor.tables import context, live
from tests.waiting import wait_until
from tests.worker.copies import RUN, copied, state_of

from outlast_jobs.claim import claim
from outlast_jobs.look import Verdict, look
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.chores import Desk
from outlast_supervisor.finishing import environment, finish_save
from outlast_supervisor.rules_end import time_to_finish
from outlast_supervisor.states import Ending, Ledger
from outlast_supervisor.table import decide


@pytest.fixture
def records() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def desk(tmp_path: Path, records: list[tuple[str, dict[str, Any]]]) -> Desk:
    run = RunDirectory(tmp_path / "run")
    run.create()
    return Desk(run, RUN, lambda event, data: records.append((event, data)))


def memory(desk: Desk) -> int:
    """The descriptor of a copy by attempt 1, which is dead."""
    copy = copied(desk.run.checkpoints, state_of(model={"a": torch.rand(9000)}))
    return os.dup(copy.buffer.fd)  # which ends with the copy


def test_it_is_sealed_recorded_and_told(desk: Desk, records: list[tuple[str, dict[str, Any]]]) -> None:
    """By another process; a record says so; once only; and the descriptor is closed."""
    fd = memory(desk)
    again = os.dup(fd)
    told, sealed = finish_save(desk, fd, 1, 60.0)
    name = "step-000000007.a0001"
    assert told == f"the save of step 7 was finished after the worker's death: {name} is sealed"
    assert sealed is not None
    assert (sealed.name, sealed.step) == (name, 7)
    assert look(desk.run.checkpoints / name, RUN, full=True).verdict is Verdict.VERIFIED
    [(event, data)] = records
    assert (event, data["generation"], data["ok"]) == ("save_finished", name, True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    told, sealed = finish_save(desk, again, 1, 60.0)
    assert sealed is None
    assert "cannot be finished" in told


def test_a_newer_claim_is_obeyed(desk: Desk, records: list[tuple[str, dict[str, Any]]]) -> None:
    """Where another supervisor has the run by now nothing is written, and why is told."""
    fd = memory(desk)
    claim(desk.run.checkpoints, 2)
    told, sealed = finish_save(desk, fd, 1, 60.0)
    assert sealed is None
    assert "taken away by a newer attempt" in told
    assert [path.name for path in desk.run.checkpoints.iterdir()] == [".writing-0002"]
    assert records[0][1]["ok"] is False


def test_it_does_not_take_longer_than_it_may(desk: Desk) -> None:
    """When the time is over it is told, and the process ends by itself, whatever it has come to."""
    told, sealed = finish_save(desk, memory(desk), 1, 0.0)
    assert sealed is None
    assert "took longer" in told
    mark = f"OUTLAST_RUN={desk.run.path.absolute()}".encode()
    wait_until(lambda: not any(mark in _environ(pid) for pid in os.listdir("/proc")), 60, "its end")


def test_it_is_taken_for_nobody_else(desk: Desk) -> None:
    """What marks a daemon's supervisor, or speaks to one alone, is not in its environment; the run's own mark is."""
    base = {"OUTLAST_DAEMON": "x", "NOTIFY_SOCKET": "y", "WATCHDOG_USEC": "1", "PATH": "/bin"}
    found = environment(base, desk, 3)
    mark = {"OUTLAST_RUN": str(desk.run.path), "OUTLAST_RUN_ID": RUN, "OUTLAST_ATTEMPT": "3"}
    assert found == {"PATH": "/bin", "PYTHONUNBUFFERED": "1", **mark}


def _environ(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() if pid.isdigit() else b""
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("ledger", "unsealed", "most"),
    [
        (Ledger(), 0, 0.0),
        (Ledger(), 2_000_000_000, 160.0),
        (Ledger(leaving="SIGTERM"), 2_000_000_000, 30.0),
        (Ledger(holding="ann"), 2_000_000_000, 30.0),
        (Ledger(deadline=25.0), 2_000_000_000, 19.0),
        (Ledger(deadline=5.5), 1, 1.0),
        (Ledger(gone="removed"), 1, 0.0),
    ],
)
def test_the_time_for_it_is_what_is_left(ledger: Ledger, unsealed: int, most: float) -> None:
    """Long where the run goes on, the grace where it ends, and not beyond a deadline."""
    assert time_to_finish(ledger, unsealed, context(5.0)) == most
    state = Ending(ledger, live(), "", "", 1, None, 0.0, None, None, "look", False)
    after, actions = decide(state, ev.LeftoversGone(unsealed), context(5.0))
    assert actions == (act.Examine(1, most),)
    assert isinstance(after, Ending)
    assert after.look_at == 5.0 + 10.0 + most
    if not ledger.leaving:
        after, _ = decide(after, ev.Notice("SIGTERM"), context(6.0))
        assert isinstance(after, Ending)
        assert after.look_at == min(15.0 + most, 46.0)
