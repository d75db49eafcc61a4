"""A hang ends, with its stacks in the log; what does not heed is killed; nothing outlives its attempt."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.e2e.faulty import ends, only, outcomes, plain, resumed, toy
from tests.e2e.harness import Run, gone

from outlast_jobs.contract import Env, ExitCode

SOON = {"min": "4s"}
"""A `hang` section: a limit of 4 s once twenty reports were seen, of 12 s before and after the training."""


def whole_once(run: Run, steps: int) -> None:
    """The run's history is complete, and nothing of it is alive."""
    assert [line["step"] for line in run.history()] == list(range(1, steps + 1))
    run.nothing_left()


def test_a_worker_that_hangs_with_the_gil_is_dumped_and_restarted(make_run: MakeRun) -> None:
    """Asleep in C in step 60, deaf to TERM: stacks in the log, KILL, a new attempt, counted as hung."""
    run = make_run(
        toy(
            *("--hang-at", 60, "--hang-how", "gil", "--fault-attempts", 1),
            steps=80,
            step_seconds=0.05,
            save={"every_steps": 20},
            hang=SOON,
            stop={"grace": "500ms"},
        )
    )
    first = run.start()
    assert first.wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["hung", "done"]
    assert resumed(run) == [None, "step-000000040.a0001"]
    counters = ends(run)[-1]["counters"]
    assert (counters["hung"], counters["crashed"], counters["crashed_progress"]) == (1, 0, 0)
    assert ends(run)[0]["signal"] == signal.SIGKILL
    hung = only(run.records("hung")).data
    assert hung["phase"] == "train"
    assert hung["seconds"] >= hung["limit"] >= 4
    log = run.log(1)
    assert "most recent call first" in log
    assert " in hang_holding_gil" in log
    assert "hung: no sign of life" in first.output
    whole_once(run, 80)


def test_a_stopped_worker_is_hung_and_set_going_to_save(make_run: MakeRun) -> None:
    """After SIGSTOP to the worker comes CONT, then its stacks, then a save: no step is lost."""
    run = make_run(plain(steps=400, seconds=0.01, save={"every_steps": 1000}, hang=SOON))
    first = run.start()
    worker = first.worker()
    run.until_step(100)
    os.kill(worker, signal.SIGSTOP)
    assert first.wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["hung", "done"]
    assert ends(run)[0]["code"] == ExitCode.SAVED
    assert ends(run)[1]["counters"]["hung"] == 1
    assert "most recent call first" in run.log(1)
    stopped_at = run.metrics(1)[-1]["step"]
    assert resumed(run) == [None, f"step-{stopped_at:09d}.a0001"]
    whole_once(run, 400)


def test_a_worker_that_nobody_hears_is_not_hung(make_run: MakeRun) -> None:
    """With the channel gone, steps and seals on disk count: the healthy worker is left alone, to its end."""
    run = make_run(plain(steps=350, seconds=0.03, save={"every_seconds": "8s"}, hang=SOON))
    first = run.start()
    worker = first.worker()
    run.until_step(90)  # the silence is over its limit before the first save, which is overdue before the end
    Path(environment(worker)[Env.NOTIFY_SOCKET]).unlink()
    assert first.wait() == ExitCode.DONE, run.report()
    assert outcomes(run) == ["done"]
    assert run.records("hung", "violation") == []
    assert {f.index.reason for f in run.findings()} == {"every 8 s", "the end of training"}
    whole_once(run, 350)


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_a_trainer_that_ignores_term_is_killed_after_the_grace(make_run: MakeRun) -> None:
    """TERM to the supervisor of a deaf trainer: KILL after the grace, exit 75, and what was saved stays."""
    run = make_run(
        toy("--ignore-term", steps=9000, save={"every_steps": 20}, keep={"last": 9}, stop={"grace": "500ms"})
    )
    first = run.start()
    worker = first.worker()
    run.until(lambda: run.generations(), "a first generation")
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert gone(worker)
    end = only(run.records("attempt_ended")).data
    assert (end["outcome"], end["signal"]) == ("saved", signal.SIGKILL)
    assert "did not end in time" in first.output
    assert run.verified()
    run.nothing_left()


DEAF_FAMILY = """
trap '' TERM
sh -c 'trap "" TERM; echo $$ > child; while :; do sleep 1; done' &
while :; do sleep 1; done
"""


def test_a_bare_command_and_its_children_that_ignore_term_are_killed(make_run: MakeRun) -> None:
    """Whatever a bare command started is killed after the grace, and the run can be started again."""
    run = make_run({"command": ["sh", "-c", DEAF_FAMILY], "signals": "native", "stop": {"grace": "300ms"}})
    first = run.start()
    child = run.until(lambda: read_pid(run.folder / "child"), "the child of the worker")
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    assert gone(child)
    assert only(run.records("attempt_ended")).data["signal"] == signal.SIGKILL
    run.nothing_left()


def read_pid(path: Path) -> int | None:
    """The process id in a file, once it is there in whole."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


STRAY = """
import os, signal, subprocess, sys, time
if os.fork():
    while not os.path.exists("stray"): time.sleep(0.01)
    sys.exit(1)
os.setsid()
if os.fork(): os._exit(0)
os.execve(sys.executable, [sys.executable, "-c", '''
import fcntl, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = open("device", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
os.rename(os.open("stray.tmp", os.O_CREAT) and "stray.tmp", "stray")
while True: time.sleep(3600)
'''], {})
"""
NEEDS_THE_DEVICE = """
import fcntl, os
lock = open("device", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def test_a_grandchild_that_outlives_its_parent_is_ended_before_the_next_attempt(make_run: MakeRun) -> None:
    """A daemon in a session of its own, without our marks, deaf to TERM, is gone when the next attempt starts."""
    script = f"import os\nif os.environ['OUTLAST_ATTEMPT'] == '1':\n    exec({STRAY!r})\nexec({NEEDS_THE_DEVICE!r})\n"
    run = make_run(
        {"command": ["{python}", "train.py"], "signals": "native", "stop": {"grace": "300ms"}}, script=script
    )
    first = run.start()
    assert first.wait() == ExitCode.DONE, run.report()
    assert [end["code"] for end in ends(run)] == [1, 0]
    run.nothing_left()
