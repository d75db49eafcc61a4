"""What a killed supervisor leaves alive: the next start ends it and goes on, and two trainers never meet."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, SCRIPTS, Run, Supervisor, children, gone
from tests.shortage import no_more_files

from outlast_jobs import events as journal
from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor.processes import heeds

STEPS = 30
HANG_AT = 17
SAVED = f"step-{(HANG_AT - 1) // 5 * 5:09d}.a0001"
TRAINER = [sys.executable, str(SCRIPTS / "survivor.py"), "--steps", str(STEPS)]
HANGING = [*TRAINER, "--hang-at", str(HANG_AT)]
COMMANDS = {
    "itself": HANGING,
    # with a command behind it, so that the shell does not exec the trainer but waits for it
    "a shell": ["bash", "-c", f"{shlex.join(HANGING)}; echo ended"],
    # and cannot be told by the environment that /proc shows
    "a pipe, with a title": ["bash", "-c", f"{shlex.join(HANGING)} --titled | cat"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", *HANGING[1:]],
}


def leave_alive(run: Run) -> tuple[Supervisor, list[ProcessIdentity]]:
    """Start, wait until the trainer hangs, KILL the supervisor; who is alive after that."""
    first = run.start()
    hung = first.until(lambda: _words(run, "hung"), "a trainer in its step that never ends", 2 * PATIENCE)
    saved = run.directory.checkpoints / SAVED  # written while the training goes on, so perhaps not yet
    first.until(saved.exists, "the save before that step")
    trainer, daemon = map(int, hung)
    loaders = children(trainer)
    assert len(loaders) >= 2
    first.kill()
    alive = [ProcessIdentity.of(pid) for pid in (trainer, daemon, *loaders)]
    assert None not in alive, "the test needs all of them to outlive their supervisor"
    return first, [identity for identity in alive if identity is not None]


def _words(run: Run, name: str) -> list[str]:
    path = run.folder / name
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("behind", COMMANDS)
def test_the_next_start_ends_what_is_left_and_goes_on(make_run: MakeRun, behind: str) -> None:
    """After KILL of the supervisor the next start ends trainer, loaders and daemon, then resumes: no 69."""
    run = make_run(
        {"command": COMMANDS[behind], "workdir": ".", "save": {"every_steps": 5}, "stop": {"grace": "1s"}}
    )
    _, left = leave_alive(run)
    newest = run.generations()[0].name
    assert newest == SAVED

    second = run.start()
    assert second.wait(2 * PATIENCE) == 0, run.report()

    assert not [i for i in left if i.alive()], run.report()
    assert not (run.folder / "two").exists(), "two attempts were alive at once"
    attached = [record.data["attempt"] for record in run.records(journal.ATTEMPT_ATTACHED)]
    assert attached == [1, 2]
    (ended,) = run.records(journal.LEFTOVERS_ENDED)
    assert {identity.pid for identity in left} <= set(ended.data["pids"])
    assert [record.data["resume"] for record in run.records(journal.ATTEMPT_STARTED)] == [None, newest]
    assert [line["step"] for line in run.history()] == list(range(1, STEPS + 1))
    run.nothing_left()


def test_what_a_survivor_still_saves_is_used(make_run: MakeRun) -> None:
    """A trainer that outlived its supervisor behind a shell may save before it ends; the next attempt resumes there."""
    command = ["bash", "-c", f"{shlex.join([*TRAINER, '--step-seconds', '0.1'])}; echo ended"]
    run = make_run({"command": command, "save": {"every_steps": 1000}})
    first = run.start()
    first.until(lambda: (run.last_step() or 0) >= 3, "some steps")
    reached = run.last_step() or 0
    assert not run.generations()  # what it saves once it is alone may be there at once
    first.kill()

    second = run.start()
    assert second.wait(2 * PATIENCE) == 0, run.report()

    assert not (run.folder / "two").exists(), "two attempts were alive at once"
    (_, again) = run.records(journal.ATTEMPT_STARTED)
    assert again.data["step"] >= reached
    assert [line["step"] for line in run.history()] == list(range(1, STEPS + 1))
    run.nothing_left()


ISOLATED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.skipif(
    subprocess.run([*ISOLATED, "true"], stderr=subprocess.DEVNULL).returncode != 0,
    reason="needs the right to make a pid namespace",
)
def test_an_unmarked_orphan_of_an_attempt_is_ended_by_the_first_process(make_run: MakeRun) -> None:
    """As PID 1, which is given everybody's orphans, those that hold the attempt's lock are ended all the same."""
    orphan = "env -i sleep 1000 </dev/null >/dev/null 2>&1 & exit 1"
    look = "grep -qsx sleep /proc/[0-9]*/comm && touch two; exit 0"
    script = f'if [ "$OUTLAST_ATTEMPT" = 1 ]; then {orphan}; fi; {look}'
    run = make_run({"command": ["sh", "-c", script], "signals": "native"})
    assert run.start(wrapper=ISOLATED).wait() == 0, run.report()
    assert run.attempts() == [1, 2]
    assert not (run.folder / "two").exists()


def test_a_start_while_the_killed_ones_worker_is_being_ended_is_told_so(make_run: MakeRun) -> None:
    """While one start ends what is left, a third one is told that the second has the run."""
    stubborn = "trap '' TERM; while :; do sleep 0.2; done"
    run = make_run({"command": ["sh", "-c", stubborn], "signals": "native", "stop": {"grace": "60s"}})
    first = run.start()
    left = first.worker()
    first.until(lambda: not heeds(left, signal.SIGTERM), "a worker that ignores TERM")
    first.kill()
    second = run.start()
    second.until(lambda: run.records(journal.LEFTOVERS_ENDED), "a start that ends what is left")
    third = run.start()
    assert third.wait() == 69, run.report()
    assert f"process {second.pid} on" in third.output
    assert not gone(left)
    assert run.attempts() == [1]


def test_a_supervisor_that_cannot_look_starts_nothing_beside_what_it_does_not_see(make_run: MakeRun) -> None:
    """A worker dies while no file can be opened: what it left is found later, and the next one starts after its end."""
    script = (
        "trap '' TERM; echo $$ >> there-$OUTLAST_ATTEMPT; while :; do sleep 0.05; done & "
        "until [ -e die-$OUTLAST_ATTEMPT ]; do sleep 0.02; done; exit 3"
    )
    run = make_run({"command": ["sh", "-c", script], "signals": "native", "stop": {"grace": "300ms"}})
    supervisor = run.start()
    worker = supervisor.worker()
    supervisor.until(lambda: _words(run, "there-1"), "what the worker leaves")
    supervisor.until(lambda: run.status(), "the first moments to be over")
    left = [pid for pid in children(worker) if not gone(pid)]
    with no_more_files(supervisor.pid):
        (run.folder / "die-1").touch()
        supervisor.until(lambda: worker not in children(supervisor.pid), "the worker's end")
        woken = _sleeps(supervisor.pid)
        supervisor.until(lambda: _sleeps(supervisor.pid) > woken + 3, "some looks")
    supervisor.until(lambda: _words(run, "there-2"), "the next attempt")
    assert all(map(gone, left))
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75


def test_a_crowd_that_ends_at_once_is_not_looked_at_for_each_of_its_deaths(make_run: MakeRun) -> None:
    """What a supervisor reads to end hundreds of processes grows with their number, and not with its square."""
    many = 200
    script = f"trap '' TERM; for i in $(seq {many}); do sleep 1000 & done; touch there; exit 3"
    run = make_run({"command": ["sh", "-c", script], "signals": "native"})
    supervisor = run.start()
    supervisor.until(lambda: run.records(journal.ATTEMPT_ENDED), "the end of all of them")
    assert _reads(supervisor.pid) < many * many
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75


def _reads(pid: int) -> int:
    """How often a process has read from anything."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr"))


def _sleeps(pid: int) -> int:
    """How often a process's first thread has gone to sleep."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
