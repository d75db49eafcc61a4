"""What a person stopped stays stopped, what is done stays done, and only the trainer says what done is."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, only, outcomes, plain, resumed, steps_of
from tests.e2e.harness import SCRIPTS, Run

from outlast_jobs.contract import ExitCode
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.verify import scan


def refused(run: Run, code: int, *words: str, args: tuple[str, ...] = ()) -> None:
    """A start that starts nothing, and says why."""
    before = run.attempts()
    started = run.start(*args)
    assert started.wait() == code, run.report()
    assert run.attempts() == before
    for word in words:
        assert word in started.output


def test_who_stops_a_run_is_told_where_nothing_was_saved(make_run: MakeRun) -> None:
    """The run is held all the same, and whoever asked learns how its worker ended."""
    run = make_run({"command": ["sleep", "1000"], "signals": "native"})
    first = run.start()
    run.until_status(lambda s: s["state"] == "running", "a worker")
    stopped = run.cli("stop", str(run.directory.path))
    told = "stopped by a person, ended by SIGTERM without a save of its own; the run is held\n"
    assert (stopped.code, stopped.out) == (0, told)
    assert first.wait() == ExitCode.HELD, run.report()


def test_a_run_that_was_stopped_by_hand_stays_stopped(make_run: MakeRun) -> None:
    """`stop` saves and ends with 70; cron's next start does nothing; --release goes on where it was."""
    run = make_run(plain(steps=600, seconds=0.01, save={"every_steps": 1000}))
    first = run.start()
    run.until_step(30)
    stopped = run.cli("stop", str(run.directory.path))
    assert (stopped.code, stopped.out) == (0, "stopped; the run is held\n")
    assert first.wait() == ExitCode.HELD, run.report()
    newest = run.generations()[0].name
    assert steps_of(run.generations()) == [run.metrics(1)[-1]["step"]], "it was saved where it stopped"
    status = run.status() or {}
    assert "stopped by" in status["held"]
    (held,) = run.records("held")
    assert {"job_digest", "code_digest"} <= held.data.keys(), "what decides whether a start lifts it"

    refused(run, ExitCode.HELD, "held by", "stopped by hand", "--release")
    refused(run, ExitCode.HELD)
    again = run.cli("stop", str(run.directory.path))
    assert (again.code, again.out) == (0, "already held: stopped by hand\n")

    assert run.start("--release").wait() == ExitCode.DONE, run.report()
    assert resumed(run) == [None, newest]
    (done,) = run.records("done")
    assert "command_digest" in done.data
    assert ends(run)[-1]["counters"]["preempted"] == 0, "what was counted before the hold is forgotten"
    assert [line["step"] for line in run.history()] == list(range(1, 601))
    run.nothing_left()


SLEEPS = {"command": ["sh", "-c", "[ -e go ] || exec sleep 600"], "signals": "native"}


def test_a_run_without_a_supervisor_can_be_stopped_too(make_run: MakeRun) -> None:
    """`stop` between two of cron's starts holds the run; a changed job file lifts the hold by itself."""
    run = make_run(SLEEPS)
    first = run.start()
    first.worker()
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert "SIGTERM: the worker is told to end, within" in first.output, "nobody knows what it saves"
    stopped = run.cli("stop", str(run.directory.path))
    assert stopped.code == 0
    assert "no supervisor was running; the run is held" in stopped.out
    refused(run, ExitCode.HELD, "stopped by")
    (run.folder / "go").touch()
    run.write_job({**SLEEPS, "keep": {"last": 5}})
    lifted = run.start()
    assert lifted.wait() == ExitCode.DONE, run.report()
    assert only(run.records("released")).data["why"] == "the job file changed"
    assert "stopped by" in lifted.output.splitlines()[0]
    assert lifted.output.splitlines()[0].endswith("; it goes on: the job file changed")


def test_a_run_that_is_done_stays_done(make_run: MakeRun) -> None:
    """Again: 0 at once; more steps: on from the last generation; --fresh: a new run, and the old one is kept."""
    run = make_run(plain(steps=20))
    assert run.start().wait() == ExitCode.DONE, run.report()
    refused(run, ExitCode.DONE, "already complete")
    assert (run.status() or {})["done"] is True

    run.write_job(plain(steps=30))
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert resumed(run) == [None, "step-000000020.a0001"]
    assert [line["step"] for line in run.metrics(2)] == list(range(21, 31))
    assert (run.folder / "exported").read_text() == str(sum(range(31)))
    refused(run, ExitCode.DONE, "already complete")

    kept, run_id = [path.name for path in run.generations()], run.run_id
    assert run.start("--fresh").wait() == ExitCode.DONE, run.report()
    assert run.run_id != run_id
    assert resumed(run) == [None]
    assert [line["step"] for line in run.history()] == list(range(1, 31))
    old = RunDirectory(run.folder / "run.old-1")
    assert old.read_run().run_id == run_id
    assert [path.name for path in scan(old.checkpoints)] == kept
    run.nothing_left()


def test_a_swallowed_exit_code_makes_no_run_done(make_run: MakeRun) -> None:
    """Behind `| cat` a trainer that exits 75 seems to exit 0: it is restarted, or 75 is passed on, never done."""
    script = shlex.join([sys.executable, str(SCRIPTS / "plain.py"), "--steps", "500", "--seconds", "0.01"])
    run = make_run({"command": ["sh", "-c", f"{script} | cat"], "save": {"every_steps": 1000}})
    first = run.start()
    run.until_step(20)
    os.kill(run.records("attempt_attached")[0].data["pid"], signal.SIGTERM)
    first.until(lambda: run.attempts() == [1, 2], "a second attempt")
    run.until_step(1, attempt=2)
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert [(end["outcome"], end["code"]) for end in ends(run)] == [("saved", 0), ("saved", 0)]
    assert (run.status() or {})["done"] is False
    assert run.verified()[0].index.step == run.metrics(2)[-1]["step"], "no step was lost"
    run.nothing_left()


def test_a_run_whose_export_fails_is_not_done(make_run: MakeRun) -> None:
    """A failure after the training's last word: again, from the final generation, and nothing is trained twice."""
    run = make_run(plain(steps=20))
    (run.folder / "export-fails").touch()
    first = run.start()
    assert first.wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["crashed_progress", "done"]
    assert resumed(run) == [None, "step-000000020.a0001"]
    assert "the training is complete, but what follows it failed: OSError" in first.output
    assert run.metrics(2) == []
    assert (run.folder / "exported").read_text() == str(sum(range(21)))
    run.nothing_left()


def test_a_bare_command_is_done_with_exit_0_and_no_other(make_run: MakeRun) -> None:
    """What knows nothing of outlast is done when it exits 0; 75 with nothing to show for it is a crash."""
    script = "[ -e once ] && exit 0; touch once; exit 75"
    run = make_run({"command": ["sh", "-c", script], "signals": "native"})
    assert run.start().wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["crashed", "done"]
    refused(run, ExitCode.DONE, "already complete")


@pytest.mark.parametrize("mode", ["outlast", "native"])
def test_a_script_that_forgot_the_library_is_told(make_run: MakeRun, mode: str) -> None:
    """Done without a Checkpointer is said where the job says that there is one, and nowhere else."""
    run = make_run({"command": ["true"], "signals": mode})
    start = run.start()
    assert start.wait() == ExitCode.DONE, run.report()
    told = "warning: no Checkpointer was entered, so nothing was saved"
    assert (told in start.output) == (mode == "outlast")
