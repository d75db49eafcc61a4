"""One run, one supervisor: whoever starts it a second time is told who has it, and touches nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, SCRIPTS, Run, Supervisor
from tests.waiting import wait_until

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.locks import Held, RunLock, read_holder
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.ledger import held_lock

GATED = (sys.executable, str(SCRIPTS / "gated.py"))
PAIRS = 50
NAMES = 10
HELD_BY_US = "echo $$ >> started; : < go"  # lives until somebody opens "go" for writing


def job(number: int) -> dict[str, Any]:
    """Another number is another command, and so not done yet."""
    return {"command": ["sh", "-c", HELD_BY_US, str(number)], "signals": "native"}


def started(run: Run) -> list[str]:
    """A line for each worker that ever ran."""
    path = run.folder / "started"
    return path.read_text().split() if path.exists() else []


def let_go(run: Run) -> None:
    """Let the worker end, once it waits for that."""

    def opened() -> int | None:
        try:
            return os.open(run.folder / "go", os.O_WRONLY | os.O_NONBLOCK) + 1
        except OSError:
            return None

    os.close(run.until(opened, "a worker that waits to be let go") - 1)


def race(run: Run, number: int, *args: str) -> tuple[Supervisor, Supervisor]:
    """Start the run twice at one moment; the winner, still running, and the loser, ended."""
    gate = run.folder / f"gate-{number}"
    os.mkfifo(gate)
    both = [run.start(*args, wrapper=GATED, env={"GATE": str(gate)}) for _ in range(2)]
    for one in both:
        one.until(lambda one=one: notes_of(run, number, one).exists(), "a start that waits at the gate")
    opened = os.open(gate, os.O_WRONLY)  # and kept open, for one that is about to wait
    try:
        run.until(lambda: not all(one.running() for one in both), "the end of one of the two starts")
    finally:
        os.close(opened)
    winner, loser = sorted(both, key=lambda one: not one.running())
    return winner, loser


def notes_of(run: Run, number: int, supervisor: Supervisor) -> Path:
    return run.folder / f"gate-{number}.{supervisor.pid}"


@pytest.mark.parametrize("folder", range(NAMES))
def test_of_two_starts_at_one_moment_exactly_one_runs(make_run: MakeRun, folder: int) -> None:
    """Of two starts at one moment exactly one runs; the other exits 69, names it and changes nothing."""
    run = make_run(job(0))
    os.mkfifo(run.folder / "go")
    for number in range(PAIRS // NAMES):
        run.write_job(job(number))  # the first pair races for a new folder, the others for a known run
        winner, loser = race(run, number)
        assert loser.wait() == ExitCode.BUSY, run.report()
        assert f"another supervisor has it: process {winner.pid} on" in loser.output
        changes = notes_of(run, number, loser).read_text().splitlines()
        allowed = {f"open {run.directory.lock}", f"os.mkdir {run.directory.path}"}
        assert set(changes) <= allowed, changes
        run.until(lambda number=number: len(started(run)) > number, "the winner's worker")
        holder = read_holder(run.directory)
        assert holder is not None
        assert holder.identity == ProcessIdentity.of(winner.pid)
        let_go(run)
        assert winner.wait() == 0, run.report()
        assert len(started(run)) == number + 1
        lives = run.records(journal.SUPERVISOR_STARTED)
        assert [life.life for life in lives] == list(range(1, number + 2))
        assert lives[-1].data["identity"] == str(holder.identity)
        assert run.attempts() == list(range(1, number + 2))
    run.nothing_left()


def test_of_two_that_begin_anew_at_one_moment_exactly_one_runs(make_run: MakeRun) -> None:
    """Of two `--fresh` starts at one moment one keeps the old run and begins a new one; the other exits 69."""
    run = make_run(job(0))
    os.mkfifo(run.folder / "go")
    rounds = 4
    ids = set()
    for number in range(rounds + 1):
        winner, loser = race(run, number, "--fresh")
        assert loser.wait() == ExitCode.BUSY, run.report()
        run.until(lambda number=number: len(started(run)) > number, "the winner's worker")
        let_go(run)
        assert winner.wait() == 0, run.report()
        assert len(started(run)) == number + 1
        assert run.attempts() == [1]
        ids.add(run.run_id)
    assert len(ids) == rounds + 1
    kept = sorted(path.name for path in run.folder.iterdir() if path.name.startswith("run."))
    assert kept == [f"run.old-{number}" for number in range(1, rounds + 1)]


def tree(folder: Path) -> dict[str, object]:
    """All that can be told of a folder: names, kinds, inodes, times and contents."""
    found: dict[str, object] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        found[str(path)] = (
            stat.st_mode,
            stat.st_ino,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            content,
        )
    return found


def test_a_late_start_changes_no_byte(make_run: MakeRun) -> None:
    """A start of a run that another supervisor has exits 69 and leaves every byte and time as it was."""
    run = make_run(job(0))
    os.mkfifo(run.folder / "go")
    first = run.start()
    run.until_status(lambda status: status.get("worker"), "a worker")
    run.until(lambda: started(run), "the worker")
    first.send(signal.SIGSTOP)  # it renews status.json now and then; stopped, it has the run all the same
    wait_until(lambda: is_stopped(first.pid), PATIENCE, "a stopped supervisor")
    before = tree(run.directory.path)
    run.write_job(job(1))  # not even a changed job file is taken over
    for words in ([], ["--fresh"], ["--release"]):
        late = run.start(*words)
        assert late.wait() == ExitCode.BUSY, run.report()
        assert f"process {first.pid} on" in late.output
    quiet = run.start("--quiet")
    assert quiet.wait() == ExitCode.BUSY
    assert quiet.output == ""
    assert tree(run.directory.path) == before
    assert sorted(path.name for path in run.folder.iterdir() if path.name.startswith("run")) == ["run"]
    first.send(signal.SIGCONT)
    let_go(run)
    assert first.wait() == 0, run.report()


def is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :][:1] == b"T"


def test_a_run_that_is_put_aside_meanwhile_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start between whose looks another has renamed the old run takes the new folder, and is no failed write."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    opened = os.open

    def renamed_first(path: Any, *args: Any, **more: Any) -> int:
        if path == run.lock and not (tmp_path / "old").exists():
            run.path.rename(tmp_path / "old")
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", renamed_first)
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    lock.release()
    assert run.lock.exists()


def test_a_start_waits_for_a_command_that_has_the_run_for_a_moment(make_run: MakeRun) -> None:
    """A pin, or a hold, of a run that nobody supervises is no supervisor: the start goes on after it."""
    run = make_run({"command": ["true"], "signals": "native"})
    (run.directory.path / "journal").mkdir(parents=True)
    with held_lock(run.directory) as busy:
        assert busy is None
        assert read_holder(run.directory) is None, "there is nobody to be asked"
        start = run.start()
        start.until(lambda: opened(start.pid, "lock"), "a start that looks at the lock")
    assert start.wait() == ExitCode.DONE, start.output


def opened(pid: int, name: str) -> bool:
    """Whether a process has a file of this name open now."""
    found = []
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            found.append(os.readlink(fd))
    return any(path.endswith(f"/{name}") for path in found)
