"""`outlast run` inside a Slurm job knows the end, and asks for it again when it is warned."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST, Supervisor, gone, kill
from tests.schedulers.fake_slurm import FakeSlurm
from tests.schedulers.in_slurm import left, saves, started, verdicts
from tests.waiting import wait_until


def test_warned_near_the_end(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """USR1 with a near end: it trains on to the last boundary that fits, saves, and is queued again, once."""
    supervisor = started(make_run, slurm)
    run = supervisor.run
    slurm.say("end", int(time.time()) + 9)
    begun = time.time()
    supervisor.send(signal.SIGUSR1)
    assert supervisor.wait() == 75, run.report()  # although the requeue brings a TERM, as the real one does
    [(why, at)] = saves(run)
    assert why == "stop", run.report()
    assert at > begun + 1, run.report()
    [(how, reason)] = verdicts(run)
    assert how == "requeue", run.report()
    assert "the deadline (the end of Slurm job 7)" in reason, run.report()
    assert slurm.calls("scontrol requeue") == ["scontrol requeue 7"]
    assert [r.data["ok"] for r in run.records("requeued")] == [True]
    assert (run.status() or {})["requeue"] == "Slurm job 7: queued again"
    assert "requeue    Slurm job 7: queued again" in run.cli("status", str(run.directory.path)).out


def test_warned_far_from_the_end(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """USR1 with an end that is farther than slurm.warn and a minute: it saves and goes on."""
    slurm.say("end", int(time.time()) + 100)
    supervisor = started(make_run, slurm)
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: saves(supervisor.run), "a save")
    assert [why for why, _ in saves(supervisor.run)] == ["save"]
    assert supervisor.running()


@pytest.mark.parametrize("how", ["hang", "hang-in-child"])
def test_a_hanging_squeue_delays_no_stop(make_run: MakeRun, slurm: FakeSlurm, how: str) -> None:
    """TERM while squeue hangs is obeyed before the warning that waits for squeue, and squeue is left nowhere."""
    slurm.mode("squeue", how)
    supervisor = started(make_run, slurm)
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: len(slurm.calls("squeue")) >= 2, "the question after the warning")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    assert [why for why, _ in saves(supervisor.run)] == ["stop"], supervisor.run.report()
    supervisor.run.nothing_left()


@pytest.mark.parametrize("how", ["hang", "down", "garbage", "killed"])
def test_a_warning_without_an_answer(make_run: MakeRun, slurm: FakeSlurm, how: str) -> None:
    """Where squeue says nothing that helps, the warning means: save at once and go on. A message says so."""
    slurm.mode("squeue", how)
    supervisor = started(make_run, slurm)
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: saves(supervisor.run), "a save")
    assert [why for why, _ in saves(supervisor.run)] == ["save"]
    assert "the end of Slurm job 7 was not told" in supervisor.output


def asking(supervisor: Supervisor) -> list[int]:
    """The processes of a run that are neither its worker nor its supervisor."""

    def command(pid: int) -> bytes:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        return b""

    known = {b"", command(supervisor.pid), command(supervisor.worker())}
    return [pid for pid in supervisor.run.processes() if command(pid) not in known]


def test_a_storm_of_warnings_asks_once(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """However many USR1 come while a question is under way, it stays the only one, and they are one warning."""
    slurm.say("end", int(time.time()) + 5000)
    supervisor = started(make_run, slurm)
    supervisor.until(lambda: supervisor.run.records("deadline"), "the end to be known")
    slurm.mode("squeue", "hang")
    supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: len(slurm.calls("squeue")) == 2, "the question after the warning")
    for _ in range(50):
        supervisor.send(signal.SIGUSR1)
    supervisor.until(lambda: saves(supervisor.run), "a save")
    supervisor.until(
        lambda: supervisor.run.records("relayed"), "the record of it, which is written beside it"
    )
    assert len(slurm.calls("squeue")) == 2, slurm.calls()
    assert [r.data["from"] for r in supervisor.run.records("relayed")] == ["SIGUSR1"]
    supervisor.until(lambda: not asking(supervisor), "the end of squeue")


def test_a_question_outlives_an_attempt(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """What asks Slurm is nothing that an attempt left: the next one starts, and the answer is still awaited."""
    slurm.mode("squeue", "hang")
    supervisor = started(make_run, slurm)
    run = supervisor.run
    supervisor.until(lambda: slurm.calls("squeue"), "the question")
    worker = supervisor.worker()
    [squeue] = supervisor.until(lambda: asking(supervisor), "squeue")
    kill(worker)
    supervisor.until(lambda: len(run.records("attempt_attached")) == 2, "the next attempt")
    assert not gone(squeue)
    assert len(slurm.calls("squeue")) == 1


def test_a_warning_that_means_stop_needs_no_answer(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """With on_usr1: stop the warning stops at once, whatever squeue does, and the job is queued again."""
    slurm.mode("squeue", "hang")
    run = left(make_run, slurm)
    assert "was not told" not in run.supervisors[0].output
    assert slurm.calls("scontrol requeue")


def test_an_end_in_the_environment_is_not_asked_for(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """Where Slurm says the end in the environment it is known from the start, and squeue is left alone."""
    end = int(time.time()) + 5000
    supervisor = started(make_run, slurm, SLURM_JOB_END_TIME=str(end))
    assert abs(supervisor.run.records("deadline")[0].data["at"] - end) < 1
    assert not slurm.calls("squeue")


def test_an_end_that_was_moved_ends_nothing(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """Just before the known end counts it is asked for once more; where it was moved the training goes on."""
    slurm.say("end", int(time.time()) + 10)
    supervisor = started(make_run, slurm)
    supervisor.until(lambda: supervisor.run.records("deadline"), "the end to be known")
    slurm.say("end", int(time.time()) + 5000)
    supervisor.until(lambda: len(supervisor.run.records("deadline")) == 2, "the new end")
    assert supervisor.running()
    assert not saves(supervisor.run)


def test_an_end_that_passed_while_suspended_ends_nothing(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """Slurm moves the end of a suspended job: after SIGCONT the old end counts only if it is told again."""
    end = int(time.time()) + 9
    slurm.say("end", end)
    supervisor = started(make_run, slurm)
    supervisor.until(lambda: supervisor.run.records("deadline"), "the end to be known")
    supervisor.send(signal.SIGSTOP)
    wait_until(lambda: time.time() > end, 30, "the old end")
    slurm.say("end", int(time.time()) + 5000)
    supervisor.send(signal.SIGCONT)

    def known() -> bool:
        return any((r.data["at"] or 0) > end + 1000 for r in supervisor.run.records("deadline"))

    supervisor.until(known, "the new end")
    assert supervisor.running()
    assert not saves(supervisor.run), supervisor.run.report()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{start}; echo $?", True),
        ("exec {start}", False),
        ("export SLURM_STEP_ID=4294967290; {start}; echo $?", False),
        ("trap 'kill -TERM $!' TERM; {start} & wait; wait", False),
    ],
)
def test_a_batch_script_that_keeps_its_signals_is_told(
    make_run: MakeRun, slurm: FakeSlurm, line: str, told: bool
) -> None:
    """Where the script's shell gets Slurm's signals and dies of them, the start says so, with the cure."""
    run = make_run({"command": ["/bin/true"], "signals": "native"}, env=slurm.env())
    text = line.format(start=f'"{OUTLAST}" run "{run.job_file}"')
    script = run.folder / "batch.sh"
    script.write_text(f"#!/bin/bash\nexport SLURM_TASK_PID=$$\n{text}\n")
    done = subprocess.run(["/bin/bash", str(script)], env=run.env, capture_output=True, text=True, timeout=60)
    assert "exited 0" in done.stderr, done.stderr
    assert ("write exec outlast run" in done.stderr) == told, done.stderr
