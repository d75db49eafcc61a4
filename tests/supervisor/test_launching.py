"""Before the loop, and around a launch: waiting that can be ended, files that a full disk does not give."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs.contract import ExitCode
from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.jobfile import Job, job_from_command
from outlast_jobs.locks import Held, RunLock
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import early, spawn
from outlast_supervisor import events as ev
from outlast_supervisor.events import Chosen
from outlast_supervisor.launch import Launcher, Opened
from outlast_supervisor.supervise import Refused, preflight

FRESH = ev.Chosen(1, None, None, 0, True, "no generation yet", 0)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    run = RunDirectory(tmp_path / "run")
    run.create()
    job = job_from_command(["true"], str(run.path), tmp_path)
    return Launcher(run, "a" * 32, job, "digest", False)


def launch(launcher: Launcher, opened: Opened) -> ProcessIdentity:
    try:
        return spawn.launch(launcher.order(opened, "/nowhere"), opened.log_fd)
    finally:
        opened.close()


def test_a_full_disk_costs_the_header_of_a_log_and_not_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log whose header cannot be written is a log."""

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    os.close(spawn.open_log(tmp_path / "log", "header"))
    assert (tmp_path / "log").exists()


def test_a_full_disk_costs_a_log_and_not_the_start(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no log can be made the worker starts without one, which is told; other errors are errors."""
    failure = OSError(errno.ENOSPC, "no space left on device")

    def refused(*args: Any) -> int:
        raise failure

    monkeypatch.setattr(spawn, "open_log", refused)
    opened = launcher.open(1, FRESH, "start")
    assert "no space left" in opened.told
    os.close(opened.log_fd)
    os.close(opened.alive_fd)
    failure = OSError(errno.EACCES, "permission denied")
    with pytest.raises(PermissionError):
        launcher.open(1, FRESH, "start")


def test_a_launch_gives_back_every_descriptor(launcher: Launcher) -> None:
    """Started or not, the supervisor keeps none of the files of an attempt open."""
    before = len(os.listdir("/proc/self/fd"))
    worker = launch(launcher, launcher.open(1, FRESH, "start"))
    assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == 0
    launcher.job = job_from_command(["./not-there"], str(launcher.run.path), launcher.run.path)
    with pytest.raises(FileNotFoundError):
        launch(launcher, launcher.open(2, FRESH, "start"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_launch_leaves_the_signal_mask_as_it_was(launcher: Launcher) -> None:
    """Signals are held back around the fork alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker = launch(launcher, launcher.open(1, FRESH, "start"))
    os.waitpid(worker.pid, 0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_worker_whose_supervisor_died_at_its_start_is_not_executed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal tells it of a death that came before it could ask for one: it looks who its parent is."""
    with monkeypatch.context() as dead:
        dead.setattr(os, "getpid", lambda: 1)
        worker = launch(launcher, launcher.open(1, FRESH, "start"))
    assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == 128 + signal.SIGTERM


def test_a_worker_ignores_no_signal_that_its_supervisor_was_started_to_ignore(launcher: Launcher) -> None:
    """Under nohup, or behind a shell's trap, what the job means by a signal would never reach the worker."""
    command = ["grep", "SigIgn", "/proc/self/status"]
    launcher.job = job_from_command(command, str(launcher.run.path), launcher.run.path)
    ignored = {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        worker = launch(launcher, launcher.open(1, FRESH, "start"))
        os.waitpid(worker.pid, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    found = launcher.run.attempt_log(1).read_text().splitlines()[-1]
    assert int(found.split()[1], 16) & sum(1 << (number - 1) for number in ignored) == 0


def test_the_named_generation_counts_until_a_worker_was_started(launcher: Launcher) -> None:
    """A look at the checkpoints that fails, and is made again, does not forget what --from named."""
    launcher.forced = "step-000000001.a0001"
    opened = launcher.open(1, FRESH, "start")
    assert launcher.forced
    os.waitpid(launch(launcher, opened).pid, 0)
    assert launcher.forced is None


def test_a_deadline_is_told_by_the_clock_as_it_is_at_the_launch(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts after the clock was set is told the same moment by that clock."""
    launcher.deadline = time.monotonic() + 50
    nothing = Chosen(1, None, None, 0, True, "no generation yet", 0)
    real = time.time
    for ahead in (0.0, 1.7e9, -1.7e9):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: real() + ahead)
        told = launcher._ours(1, nothing, "/socket")["OUTLAST_DEADLINE"]
        assert float(told) == pytest.approx(real() + ahead + 50, abs=5)


def test_waiting_before_there_is_a_loop_ends_with_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """TERM, INT and QUIT end the wait for a lock; USR1 and the like do not."""
    monkeypatch.setattr(early, "pending", [signal.SIGUSR1])
    assert early.wait(0.0)
    early.pending.append(signal.SIGTERM)
    assert not early.wait(3600)
    assert early.drain() == [signal.SIGUSR1, signal.SIGTERM]


def test_a_lock_knows_whether_the_run_directory_still_names_it(tmp_path: Path) -> None:
    """Removed and replaced are told apart: a mount may come back, another's lock is another's run."""
    run = RunDirectory(tmp_path / "run")
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    assert lock.is_named() is True
    run.path.rename(tmp_path / "elsewhere")
    assert lock.is_named() is None
    run.path.mkdir()
    run.lock.write_text("")
    assert lock.is_named() is False
    lock.release()


def test_the_worker_of_a_dead_child_is_still_told_apart(launcher: Launcher) -> None:
    """A worker that ended before it was looked at has an identity that is nobody's."""
    worker = launch(launcher, launcher.open(1, FRESH, "start"))
    os.waitpid(worker.pid, 0)
    assert ProcessIdentity.of(worker.pid) != worker


SAYS = """import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for n in range(1000): print("line", n)
"""


def test_each_attempt_has_a_log_with_all_that_it_said(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header line, then every line up to an abort or a kill, in a file that no later attempt empties."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    chosen = ev.Chosen(1, "step-000000050.a0001", "/x", 50, True, "the newest", 0)
    ends = ("os.abort()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)")
    for attempt, end in enumerate(ends, 1):
        command = [sys.executable, "-S", "-c", SAYS + end]
        launcher.job = job_from_command(command, str(launcher.run.path), launcher.run.path)
        opened = launcher.open(
            attempt, chosen if attempt > 1 else FRESH, f"cause {attempt},\ntold in two lines"
        )
        os.waitpid(launch(launcher, opened).pid, 0)
    for attempt in (1, 2, 3):
        header, *lines = launcher.run.attempt_log(attempt).read_text().splitlines()
        assert header.startswith(f"--- outlast: attempt {attempt} on {hostname()} at ")
        assert ("starts at step 0" if attempt == 1 else "resumes from step-000000050.a0001") in header
        assert f"cause {attempt}, told in two lines" in header
        assert [line for line in lines if line.startswith("line")] == [f"line {n}" for n in range(1000)]
        assert lines[0] == "line 0"
    os.close(spawn.open_log(launcher.run.attempt_log(1), "again"))
    assert launcher.run.attempt_log(1).read_text().endswith("line 999\nagain\n"), "opened to append"


def test_a_program_is_looked_for_as_exec_does(tmp_path: Path) -> None:
    """What cannot be executed is passed over in PATH; what is nowhere in it is 64 before any attempt."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "program").mkdir()
    (folders[1] / "program").touch(mode=0o644)
    path = ":".join(map(str, folders))
    asked = Job(name="x", command=("program",), workdir=str(tmp_path), run_dir="r", env={"PATH": path})
    with pytest.raises(Refused, match="not in PATH") as refused:
        preflight(asked)
    assert refused.value.code == ExitCode.USAGE
    (folders[2] / "program").touch(mode=0o755)
    preflight(asked)
