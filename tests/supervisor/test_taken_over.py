"""A supervisor that lost its run unseen: it starts no more attempts and deletes nothing."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.tables import context, running

from outlast_jobs import durable
from outlast_jobs.claim import claim
from outlast_jobs.contract import ExitCode
from outlast_jobs.jobfile import job_from_command
from outlast_jobs.locks import Held, RunLock
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import choosing, chores, startup
from outlast_supervisor import events as ev
from outlast_supervisor.actions import Choose, Exit
from outlast_supervisor.chores import Desk, taken_over
from outlast_supervisor.states import Stopping
from outlast_supervisor.table import decide

JOB = job_from_command(["true"], None, Path("/"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    created = run.create()
    return Desk(run, created.run.run_id, lambda event, data: None)


def chosen(desk: Desk, attempt: int) -> Any:
    return choosing.choose(desk, JOB, Choose(attempt, "newest", pass_over=False), None)


def test_an_older_claim_is_simply_taken_over(desk: Desk) -> None:
    """What another supervisor claimed before this one began to is no sign that the run was taken from it."""
    claim(desk.run.checkpoints, 7)
    assert taken_over(desk) == ""
    assert chosen(desk, 8).attempt == 8
    assert taken_over(desk) == ""
    assert chosen(desk, 9).attempt == 9


def test_a_newer_claim_of_another_ends_this_one(desk: Desk) -> None:
    """After another's claim nothing is claimed, chosen or pruned any more; the reason names its attempt."""
    assert chosen(desk, 1).attempt == 1
    claim(desk.run.checkpoints, 2)
    answer = chosen(desk, 2)
    assert answer == ev.RunGone(
        "another supervisor has taken this run: attempt 2 is none of ours", taken=True
    )
    assert (desk.run.checkpoints / ".writing-0002").is_dir()
    for step in range(1, 9):
        (desk.run.checkpoints / f"step-{step:09d}.a0001").mkdir()
    assert chores.prune(desk, JOB, None) == []


def test_a_claim_of_ours_that_failed_half_way_is_ours(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error in the middle of a claim is tried again, and not taken for another supervisor's claim."""

    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error")

    assert chosen(desk, 1).attempt == 1
    with monkeypatch.context() as broken:
        broken.setattr(durable, "fsync_dir", failing)
        assert isinstance(chosen(desk, 2), ev.ChooseFailed)
    assert (desk.run.checkpoints / ".writing-0002").is_dir()
    assert chosen(desk, 2).attempt == 3


def test_a_replaced_lock_ends_this_one(desk: Desk) -> None:
    """Where another lock has the place of ours the run is another's; one that is merely removed is no proof."""
    named: list[bool | None] = [True, None, False]
    desk.lock_named = lambda: named[0]
    assert taken_over(desk) == ""
    del named[0]
    assert taken_over(desk) == ""
    del named[0]
    assert chosen(desk, 1) == ev.RunGone(
        "another supervisor has taken this run: the lock was replaced", taken=True
    )
    assert not list(desk.run.checkpoints.iterdir())


def test_who_begins_anew_too_late_is_told_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another start takes the place that `--fresh` made free, the old run is kept and the other runs."""
    lock, other = RunLock(desk.run), RunLock(desk.run)
    assert isinstance(lock.acquire(), Held)
    publish = durable.publish_dir

    def overtaken(source: Path, target: Path) -> None:
        publish(source, target)
        assert isinstance(other.acquire(), Held)

    monkeypatch.setattr(durable, "publish_dir", overtaken)
    with pytest.raises(startup.Overtaken, match="another supervisor has it"):
        startup.begin_anew(desk.run, lock)
    assert (desk.run.path.with_name("run.old-1") / "run.json").is_file()
    other.release()


def test_a_supervisor_that_lost_the_run_leaves_the_new_ones_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where flock excludes nobody, releasing a run that another one has by now does not take its name away."""

    def refused(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    run = RunDirectory(tmp_path / "run")
    lost = RunLock(run)
    assert isinstance(lost.acquire(), Held)
    (lease,) = run.path.glob("lease-*")
    lease.write_bytes(b"released\n")  # its time is up, as far as the next one can see
    run.lock.write_bytes(b"")
    owner = RunLock(run)
    assert isinstance(owner.acquire(), Held)
    said = run.lock.read_bytes()
    assert not lost.renew()
    lost.release()
    assert run.lock.read_bytes() == said
    owner.release()
    assert run.lock.read_bytes() == b""


def test_a_run_that_was_taken_under_a_worker_is_busy() -> None:
    """A supervisor that finds in mid-run that another has it ends its worker at once and exits 69; where the run
    directory is merely gone it is 73."""
    for taken, code in ((True, ExitCode.BUSY), (False, ExitCode.CANNOT_WRITE)):
        after, _ = decide(running(), ev.RunGone("it is another's", taken=taken), context(6.0))
        assert isinstance(after, Stopping)
        after, _ = decide(after, ev.WorkerExited(None, 9), context(6.1))
        after, _ = decide(after, ev.LeftoversGone(), context(6.2))
        after, actions = decide(after, ev.Examined(None, False, 0, None, ""), context(6.3))
        assert [action.code for action in actions if isinstance(action, Exit)] == [code], after
