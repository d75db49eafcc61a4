"""Storage that does not answer: the caller is in the kernel, and no signal ends it; all else goes on."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST, Run, Supervisor, gone, kill, light
from tests.e2e.reference import TOY
from tests.faults.hung import Storage
from tests.faults.scale import scaled, told
from tests.realparts import needs
from tests.waiting import wait_until

from outlast_jobs.contract import ExitCode

pytestmark = needs("fuse")
SCRIPT = (Path(__file__).parent / "scripts" / "talker.py").read_text()
STEPS = 60
CALLS = [
    f"{call} .writing-" for call in ("fsync", *scaled((), ("create", "write", "close", "mkdir", "rename")))
]
"""What hangs in a save, for paths of what is being written."""
NO_TIME = 60.0
"""Seconds in which whatever does not wait for the storage has surely come, on slow cores too."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """The mount, answering again when everything else has ended."""
    made = Storage(tmp_path / "storage")
    yield made
    made.close()


@pytest.fixture
def runs(storage: Storage) -> Iterator[list[Run]]:
    """The runs of a test; what they are waiting for is let go first."""
    made: list[Run] = []
    yield made
    storage.answer()
    for run in made:
        run.close()


def toy(storage: Storage, runs: list[Run], **sections: Any) -> Run:
    """A training that saves every tenth of its steps into the mount, and runs beside it."""
    words = ["--steps", STEPS, "--step-seconds", 0.04, "--workers", 0]
    job = {"command": ["{python}", TOY, *map(str, words)], "env": {"OMP_NUM_THREADS": "1", **light()}}
    where = {"run_dir": str(storage.path / "run"), "save": {"every_steps": 10}}
    return made(storage, runs, {**job, **where, **sections})


def made(storage: Storage, runs: list[Run], job: dict[str, Any], **more: Any) -> Run:
    """A run whose directory lies in the mount, with its job file and script beside it."""
    run = Run(storage.path.parent / f"run-{len(runs)}", job, **more)
    run.directory = type(run.directory)(storage.path / "run")
    runs.append(run)
    return run


def in_a_hung_save(storage: Storage, run: Run, call: str) -> tuple[Supervisor, int]:
    """Let it save once, and hang in the next save."""
    supervisor = run.start()
    supervisor.until(lambda: run.generations(), "the first generation")
    storage.hang(call)
    supervisor.until(storage.held, f"a save that hangs in {call}")
    return supervisor, supervisor.worker()


@pytest.mark.parametrize("call", CALLS)
def test_a_save_that_hangs_holds_nothing_but_the_training(
    storage: Storage, runs: list[Run], call: str
) -> None:
    """While a save is held in the kernel the training goes on, and all is answered; then the run ends as ever."""
    run = toy(storage, runs)
    supervisor, worker = in_a_hung_save(storage, run, call)
    shown = run.cli("status", str(run.directory.path))
    assert shown.code == 0, shown
    assert "running" in shown.out
    # a rename has the lock of checkpoints/: who looks into that folder waits too
    if not call.startswith("rename"):
        assert run.cli("reload", str(run.directory.path)).code == 0
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: run.records("relayed"), "the relay of a signal", NO_TIME)
    assert not gone(worker)
    storage.answer()
    assert supervisor.wait() == 0
    assert run.attempts() == [1]
    assert run.verified()[0].index is not None
    assert run.verified()[0].index.final
    run.nothing_left()
    told(f"save hung in {call}", 1)


def test_nothing_is_started_beside_a_trainer_that_is_held_in_the_kernel(
    storage: Storage, runs: list[Run]
) -> None:
    """Told to restart, the supervisor kills, says what it waits for, and starts the next one when it is gone."""
    run = toy(storage, runs, stop={"grace": "500ms"})
    supervisor, worker = in_a_hung_save(storage, run, "fsync .writing-")
    assert run.cli("restart", str(run.directory.path), "--wait", "1").code in (0, 2)
    word = f"pids {worker}: killed, but held in the kernel"
    supervisor.until(lambda: word in supervisor.output, "word of what is waited for", NO_TIME)
    run.until(
        lambda: word in run.cli("status", str(run.directory.path)).out, "the same in the status", NO_TIME
    )
    assert run.cli("run", "-q", str(run.job_file)).code == 69
    assert run.attempts() == [1]
    assert not gone(worker)
    storage.answer()
    assert supervisor.wait() == 0
    assert run.attempts() == [1, 2]
    assert word not in run.cli("status", str(run.directory.path)).out
    run.nothing_left()


def test_a_stop_in_a_save_that_hangs_is_done_when_the_storage_answers(
    storage: Storage, runs: list[Run]
) -> None:
    """TERM during a save that hangs: the exit is 75 once nothing is held any more, and no generation is torn."""
    run = toy(storage, runs, stop={"grace": "500ms"})
    supervisor, worker = in_a_hung_save(storage, run, "fsync .writing-")
    supervisor.send(signal.SIGTERM)
    word = f"pids {worker}: killed, but held in the kernel"
    supervisor.until(lambda: word in supervisor.output, "word of what is waited for", NO_TIME)
    assert supervisor.running()
    storage.answer()
    assert supervisor.wait() == 75
    run.nothing_left()
    assert run.start().wait() == 0
    assert run.attempts() == [1, 2]
    assert len(run.verified()) == len(run.generations())


def talker(storage: Storage, runs: list[Run], tmp_path: Path) -> tuple[Run, Supervisor]:
    """A worker without torch that steps and heeds signals, whatever the run directory does; it trains by now."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(IMPATIENT)
    job: dict[str, Any] = {
        "command": [sys.executable, "-S", "train.py"],
        "run_dir": str(storage.path / "run"),
    }
    job["stop"] = {"grace": "2s"}
    run = made(storage, runs, job, script=SCRIPT, env={"PYTHONPATH": str(site)})
    supervisor = run.start()
    supervisor.until(lambda: steps(run) > 2, "steps")
    supervisor.until(lambda: run.records("attempt_attached"), "the attach")
    return run, supervisor


def steps(run: Run, name: str = "steps") -> int:
    try:
        return int((run.folder / name).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def meanwhile(storage: Storage, supervisor: Supervisor, condition: Callable[[], object], what: str) -> None:
    """Wait, and look at nothing in the mount: whoever does is held as well."""
    try:
        wait_until(condition, NO_TIME, what)
    except TimeoutError as late:
        storage.answer()
        raise AssertionError(f"{late}\n{supervisor.output}") from None


IMPATIENT = """
import sys
if sys.argv[0].endswith("outlast") and sys.argv[1:2] == ["run"]:
    from outlast_supervisor import display, journaler, rules_end, session
    display.STUCK = journaler.PATIENCE = rules_end.EXAMINE_PATIENCE = session.STUCK = session.HOOK_WAIT = 2.0
"""


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("fsync journal", "the journal cannot be written: its file system does not answer"),
        ("any ", "the run directory does not answer"),
    ],
)
def test_a_supervisor_whose_own_writes_hang_is_there_all_the_same(
    storage: Storage, runs: list[Run], tmp_path: Path, call: str, word: str
) -> None:
    """With its journal, or all of the run directory, hanging it relays signals, says so, and stops the worker."""
    run, supervisor = talker(storage, runs, tmp_path)
    worker, saves = supervisor.worker(), steps(run, "saves")
    storage.hang(call)
    supervisor.send(signal.SIGUSR1)
    meanwhile(storage, supervisor, lambda: steps(run, "saves") > saves, "the save signal at the worker")
    meanwhile(storage, supervisor, lambda: word in supervisor.output, "word of what hangs")
    before = steps(run)
    meanwhile(storage, supervisor, lambda: steps(run) > before + 5, "more steps")
    supervisor.send(signal.SIGTERM)
    ends = "not done" if call != "any " else f"pids {worker}: killed, but held"  # in closing its log
    meanwhile(storage, supervisor, lambda: ends in supervisor.output, "its end, or what that waits for")
    assert gone(worker) == (call != "any ")
    storage.answer()
    assert supervisor.wait() == 75
    run.nothing_left()


def test_a_status_that_hangs_is_written_when_the_storage_answers(
    storage: Storage, runs: list[Run], tmp_path: Path
) -> None:
    """A hang of the status alone is told and holds no step; when it is over everything goes on by itself."""
    run, supervisor = talker(storage, runs, tmp_path)
    worker = supervisor.worker()
    storage.hang("write .tmp-status")
    supervisor.send(signal.SIGUSR1)
    word = "the run directory does not answer"
    meanwhile(storage, supervisor, lambda: word in supervisor.output, "word of it")
    before = steps(run)
    meanwhile(storage, supervisor, lambda: steps(run) > before + 5, "more steps")
    kill(worker)
    meanwhile(storage, supervisor, lambda: gone(worker), "its end")
    storage.answer()
    supervisor.until(lambda: "the run directory answers again" in supervisor.output, "word of it")
    supervisor.until(lambda: len(run.attempts()) == 2, "the next attempt")
    supervisor.until(lambda: len(run.records("attempt_attached")) == 2, "its attach")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75


def test_commands_on_storage_that_hangs_say_what_they_wait_for(
    storage: Storage, runs: list[Run], tmp_path: Path
) -> None:
    """A start, a status, a verify and a request that meet a dead disk say so, and go on when it answers."""
    run, supervisor = talker(storage, runs, tmp_path)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    attempts = run.attempts()
    storage.hang("any ")
    where = str(run.directory.path)
    started = [
        subprocess.Popen([OUTLAST, *words], stderr=subprocess.PIPE, text=True, env=run.env, cwd=run.folder)
        for words in (
            ["run", str(run.job_file)],
            ["status", where],
            ["verify", where],
            ["save", where, "--wait", "1"],
        )
    ]
    try:
        for process in started:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], NO_TIME)[0], process.args
            assert "its file system has not answered for" in process.stderr.readline()
            assert process.poll() is None
        started[0].send_signal(signal.SIGTERM)
    finally:
        storage.answer()
    assert [process.wait(60) for process in started[:2]] == [75, 0]
    assert started[2].wait(60) == 1  # it has no generation
    assert started[3].wait(60) in (1, 2)  # nobody is there, or whoever starts is about to end
    assert run.attempts() == attempts, "one that was told to end has started a worker"
    for process in started:
        process.communicate()


def test_a_start_does_not_wait_for_where_the_job_lay_before(storage: Storage, make_run: MakeRun) -> None:
    """A job file that was copied away from a dead disk starts, though nobody can tell whether the two differ."""
    run = make_run({"command": ["true"], "signals": "native"})
    before = storage.path / "job.yaml"
    before.write_text(f"name: before\ncommand: ['true', x]\nrun_dir: {run.directory.path}\n")
    assert run.cli("run", str(before)).code == ExitCode.DONE, run.report()
    storage.hang("any ")
    again = run.start()
    try:
        wait_until(lambda: len(run.records("done")) == 2, NO_TIME, "the end of the run")
        assert storage.held(), "it was looked at"
    finally:
        storage.answer()
    assert again.wait() == ExitCode.DONE
