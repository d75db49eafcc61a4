"""Who is who: a pid alone names nobody, a writer that lost the run seals nothing, and a takeover is asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, Run, children, gone

from outlast_jobs import events as journal
from outlast_jobs.contract import Env, ExitCode
from outlast_jobs.identity import ProcessIdentity, boot_id
from outlast_jobs.journal import JournalWriter
from outlast_jobs.lease import Holder
from outlast_jobs.locks import is_busy

BRIEF = {"command": ["true"], "signals": "native"}
OTHER_BOOT = "11111111-2222-3333-4444-555555555555"


@contextlib.contextmanager
def bystander(**env: str) -> Iterator[ProcessIdentity]:
    """A `sleep` that has nothing to do with any run, however it came to its pid."""
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, **env})
    try:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        yield identity
        assert process.poll() is None, f"it was ended: {process.returncode}"
        assert pending(process.pid) == 0
    finally:
        process.kill()
        process.wait()


def pending(pid: int) -> int:
    """Signals sent to a process that it has not taken yet."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))


def recorded_as(run: Run, forged: ProcessIdentity) -> None:
    """Everything on disk that names a process names this one, as after a reboot that dealt its pid anew."""
    holder = msgspec.structs.replace(Holder.current(), process=str(forged))
    run.directory.lock.write_bytes(msgspec.json.encode(holder) + b"\n")
    status = run.status()
    assert status is not None
    known = {"supervisor": str(forged), "worker": forged.pid, "trainers": [forged.pid], "state": "running"}
    run.directory.write_status({**status, **known, "exit_code": None, "done": False})
    writer = JournalWriter.open(run.directory)
    attempt = (run.attempts() or [0])[-1] + 1
    records: list[tuple[str, dict[str, Any]]] = [
        (journal.SUPERVISOR_STARTED, {"identity": str(forged)}),
        (
            journal.ATTEMPT_STARTED,
            {"attempt": attempt, "resume": None, "cause": "start", "host": holder.host},
        ),
        (journal.ATTEMPT_ATTACHED, {"attempt": attempt, "pid": forged.pid, "rank": 0, "restored": None}),
    ]
    writer.write([writer.append(event, data) for event, data in records])
    writer.close()


@pytest.mark.parametrize("reused", ["by a later process", "in another boot"])
def test_a_recorded_pid_that_belongs_to_sleep_is_never_signalled(make_run: MakeRun, reused: str) -> None:
    """A `sleep` whose pid lock, status and journal name lives through a start, a stop and a takeover."""
    run = make_run(BRIEF)
    assert run.start().wait() == 0
    with bystander() as sleep:
        early = ProcessIdentity(sleep.pid, sleep.start - 1, boot_id())
        forged = (
            early if reused == "by a later process" else ProcessIdentity(sleep.pid, sleep.start, OTHER_BOOT)
        )
        recorded_as(run, forged)
        run.write_job({**BRIEF, "command": ["true", "again"]})
        assert run.start().wait() == 0, run.report()

        recorded_as(run, forged)
        assert not run.cli("save", str(run.directory.path), "--wait", "0").out  # nobody is there to answer
        run.write_job({**BRIEF, "command": ["true", "once more"]})
        assert run.start("--takeover").wait() == 0, run.report()

        recorded_as(run, forged)
        with open(run.directory.lock, "r+b") as other:  # somebody has the lock, and it says who: not so
            fcntl.flock(other, fcntl.LOCK_EX)
            run.write_job({**BRIEF, "command": ["true", "a last time"]})
            refused = run.start("--takeover")
            assert refused.wait() == ExitCode.BUSY, run.report()
            assert "cannot be ended from here" in refused.output
        run.cli("stop", str(run.directory.path), "--wait", "0")
    run.nothing_left()


def test_only_this_runs_marker_makes_a_survivor(make_run: MakeRun) -> None:
    """A process of another run, or one whose marker merely begins as this run's, is not ended as a leftover."""
    run = make_run(BRIEF)
    assert run.start().wait() == 0
    assert run.run_id is not None
    with (
        bystander(**{Env.RUN_ID: "f" * 32, Env.ATTEMPT: "1"}),
        bystander(**{Env.RUN_ID: f"{run.run_id}0"}),
        bystander(**{f"X{Env.RUN_ID}": run.run_id}),
    ):
        run.write_job({**BRIEF, "command": ["true", "again"]})
        assert run.start().wait() == 0, run.report()


MINI = ["{python}", "{scripts}/mini.py", "--workers", 0, "--steps"]


def test_a_takeover_ends_a_living_supervisor(make_run: MakeRun) -> None:
    """`--takeover` has a living supervisor save and end with 75, and goes on from exactly there."""
    run = make_run({"command": [*MINI, 80, "--step-seconds", 0.05], "save": {"every_steps": 1000}})
    first = run.start()
    first.until(lambda: (run.last_step() or 0) >= 10, "some steps")
    second = run.start("--takeover")
    assert first.wait() == ExitCode.SAVED, run.report()
    assert second.wait(2 * PATIENCE) == 0, run.report()
    _, again = run.records(journal.ATTEMPT_STARTED)
    assert again.data["step"] == run.last_step(1) >= 10
    assert [line["step"] for line in run.history()] == list(range(1, 81))
    assert [r.data["code"] for r in run.records(journal.SUPERVISOR_STOPPED)] == [ExitCode.SAVED, 0]


def test_a_takeover_ends_a_supervisor_that_does_not_answer(make_run: MakeRun) -> None:
    """A supervisor that hangs is killed by `--takeover`, and what it leaves is ended before the next attempt."""
    script = 'trap "" TERM; [ "$OUTLAST_ATTEMPT" != 1 ] || exec sleep 1000'
    run = make_run({"command": ["sh", "-c", script], "signals": "native", "stop": {"grace": "10ms"}})
    first = run.start()
    worker = first.worker()
    first.send(signal.SIGSTOP)
    second = run.start("--takeover")
    assert second.wait(2 * PATIENCE) == 0, run.report()
    assert first.process.wait() == -signal.SIGKILL
    assert gone(worker)
    assert run.attempts() == [1, 2]
    run.nothing_left()


def can_unshare() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a mount namespace")
@pytest.mark.parametrize("moment", ["step", "save"])
def test_a_stale_writer_in_another_mount_cannot_seal(make_run: MakeRun, moment: str) -> None:
    """A trainer that lost the run unseen, on another mount of the same folder, seals nothing any more."""
    run = make_run({"command": ["{python}", "{scripts}/partitioned.py", moment], "save": {"every_steps": 5}})
    os.mkfifo(run.folder / "go")
    first = run.start()
    stale = int(first.until(lambda: text(run.folder / "paused"), "a trainer on its island"))
    first.kill()
    sealed = [path.name for path in run.generations()]
    assert sealed == ["step-000000005.a0001"]
    assert run.of_attempts() == []  # the next start can't see it
    assert not is_busy(run.directory)

    second = run.start()
    second.until(lambda: len(run.generations()) > 1, "a seal of the attempt that has the run now")
    assert not gone(stale)
    os.close(os.open(run.folder / "go", os.O_WRONLY))
    assert second.wait(2 * PATIENCE) == 0, run.report()
    run.until(lambda: gone(stale), "the end of the trainer that lost the run")

    assert "is gone, taken away by a newer attempt" in run.log(1)
    assert "stopping without a save" in run.log(1)
    ours = [
        p.name for p in run.directory.checkpoints.iterdir() if "a0001" in p.name or p.name.endswith("-0001")
    ]
    assert ours in ([], sealed)  # pruned by the attempt that has the run, or not
    starts: list[Mapping[str, Any]] = [record.data for record in run.records(journal.ATTEMPT_STARTED)]
    assert [start["resume"] for start in starts] == [None, sealed[0]]
    assert [line["step"] for line in run.history()] == list(range(1, 31))


# a supervisor that sees neither the locks nor the processes of the others, as on a node that was cut off
ISLAND = """
set -e
mount --bind "$1/lock-elsewhere" "$1/run/lock"
mount --bind "$1/alive-elsewhere" "$1/run/alive"
shift
exec "$@"
"""


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a mount namespace")
def test_a_supervisor_that_lost_the_run_starts_no_more_attempts(make_run: MakeRun) -> None:
    """A supervisor whose run another one has taken unseen ends with its worker, and fences nobody."""
    run = make_run({**BRIEF, "command": ["env", "-i", "sh", "-c", "exec sleep $(cat seconds)"]})
    (run.folder / "seconds").write_text("0")
    assert run.start().wait() == 0  # so that there are locks to be hidden
    for name in ("lock-elsewhere", "alive-elsewhere"):
        (run.folder / name).touch()
    (run.folder / "seconds").write_text("1000")
    run.write_job({**BRIEF, "command": ["env", "-i", "sh", "-c", "exec sleep $(cat seconds)", "2"]})
    lost = run.start(wrapper=["unshare", "--mount", "sh", "-c", ISLAND, "sh", str(run.folder)])
    lost.until(lambda: run.attempts() == [1, 2], "the attempt that will be cut off")
    (worker,) = lost.until(lambda: children(lost.pid), "its worker")

    run.write_job(BRIEF | {"command": ["sh", "-c", "sleep 1000", "3"]})
    owner = run.start()
    owner.until(lambda: run.attempts() == [1, 2, 3], "the attempt of the one that took the run")
    assert lost.running()
    os.kill(worker, signal.SIGKILL)
    assert lost.wait() == ExitCode.BUSY, run.report()
    assert "another supervisor has taken this run" in lost.output
    assert run.attempts() == [1, 2, 3]
    assert (run.directory.checkpoints / ".writing-0003").is_dir()
    assert owner.running()


def test_a_supervisor_whose_lock_was_removed_gives_way(make_run: MakeRun) -> None:
    """Where a person removed the lock of a living supervisor, the next start has the run, and the old one ends."""
    run = make_run(
        {**BRIEF, "command": ["sh", "-c", "seconds=$(cat seconds); : > read; exec sleep $seconds"]}
    )
    (run.folder / "seconds").write_text("1000")
    first = run.start()
    run.until((run.folder / "read").exists, "a worker that has read for how long to sleep")
    run.directory.lock.unlink()
    (run.folder / "seconds").write_text("0")
    second = run.start()
    assert second.wait() == 0, run.report()
    assert first.wait() == ExitCode.BUSY, run.report()
    assert "another supervisor has taken this run" in first.output
    assert run.attempts() == [1, 2]
    run.nothing_left()


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
