"""The warm standby: it becomes the worker as a new process would be it, and is never anything else."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import SCRIPTS, Run, Supervisor, children, gone, kill
from tests.e2e.reference import Reference, toy
from tests.waiting import whole_lines

from outlast_jobs.contract import ExitCode

SLOW = """
import os, time
open("warming", "w").close()
while not os.path.exists("go-on"):
    time.sleep(0.01)
"""


def job(*command: str, **sections: Any) -> dict[str, Any]:
    words = list(command or ("train.py", "--x", "1"))
    restart = {"backoff": "10ms..10ms", "without_progress": 50}
    sections = {"standby": True, "preload": ["sqlite3"], "restart": restart, **sections}
    return {"command": ["{python}", *words], **sections}


def prepare(make_run: MakeRun, made: dict[str, Any]) -> Run:
    run = make_run(made)
    shutil.copy(SCRIPTS / "standing.py", run.folder / "train.py")
    return run


def standby(run: Run, state: str, other_than: int = 0) -> int:
    """Wait until there is one in that state; its pid."""

    def found(status: dict[str, Any]) -> bool:
        view = status.get("standby")
        return bool(view and view["state"] == state and view["pid"] != other_than)

    return int(run.until_status(found, f"a standby that is {state}")["standby"]["pid"])


def facts(run: Run, attempt: int) -> dict[str, Any]:
    """What the worker of an attempt found when it started; waits for that, and until it heeds a signal."""

    def look() -> dict[str, Any] | None:
        if attempt in run.attempts():
            lines = whole_lines(run.directory.attempt_log(attempt))
            for line in lines:
                if line.startswith("FACTS ") and "TOLD" in lines:
                    told: dict[str, Any] = json.loads(line.removeprefix("FACTS "))
                    return told
        return None

    return run.until(look, f"the facts of attempt {attempt}")


def beside(make_run: MakeRun, *own: str) -> tuple[Run, Supervisor, int, int]:
    """A run, its supervisor, its worker's pid and that of the standby, which is ready and has imported ``own``."""
    run = prepare(make_run, job(preload=list(own)) if own else job())
    for name in own:
        (run.folder / f"{name}.py").write_text("x = 1\n")
    supervisor = run.start()
    return run, supervisor, int(facts(run, 1)["pid"]), standby(run, "ready")


def niceness(pid: int) -> list[int]:
    """The nice value of each thread: the 19th field of its stat (proc(5))."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [int(fields[16]) for fields in stats]


def end(run: Run, supervisor: Supervisor) -> None:
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    run.nothing_left()


def test_there_is_none_where_memory_may_be_short(make_run: MakeRun) -> None:
    """Beside an attempt that follows two deaths by a signal, which may be the kernel's, nothing else takes memory."""
    run, supervisor, worker, first = beside(make_run)
    kill(worker)
    assert facts(run, 2)["pid"] == first
    second = standby(run, "ready", first)
    kill(first)
    assert facts(run, 3)["pid"] == second
    status = run.until_status(
        lambda s: s.get("attempt") == 3 and s.get("trainers"), "the third one's trainer"
    )
    assert status.get("standby") is None
    end(run, supervisor)


def test_one_that_warms_up_ends_where_memory_may_be_short(make_run: MakeRun) -> None:
    """What it imports takes memory long before it is ready."""
    run = prepare(make_run, job(preload=["slow"]))
    (run.folder / "slow.py").write_text(SLOW)
    supervisor = run.start()
    for attempt in (1, 2):
        worker = int(facts(run, attempt)["pid"])
        standby(run, "warming")
        kill(worker)
    facts(run, 3)
    run.until_status(
        lambda s: s.get("attempt") == 3 and s.get("trainers") and s.get("standby") is None,
        "none beside the third",
    )
    end(run, supervisor)


@pytest.mark.parametrize(
    "words", [("train.py", "--x", "1"), ("./train.py",), ("-u", "-W", "error", "-m", "train")]
)
def test_it_becomes_what_a_new_process_would_be(make_run: MakeRun, words: tuple[str, ...]) -> None:
    """Of all that a script can see of its process, a standby in its place differs by what it has imported."""
    run = prepare(make_run, job(*words))
    supervisor = run.start()
    first = facts(run, 1)
    pid = standby(run, "ready")
    kill(pid, signal.SIGUSR1)  # what a cluster sends to all is not for one that is nobody yet
    kill(pid, signal.SIGTERM)
    kill(first["pid"])
    second = facts(run, 2)
    assert second["pid"] == pid
    assert (first.pop("preloaded"), second.pop("preloaded")) == (False, True)
    for told in (first, second):
        assert told.pop("pid") > 0
        assert told["env"].pop("OUTLAST_ATTEMPT")
        told["files"] = [name.replace("attempt-0002", "attempt-0001") for name in told["files"]]
        for key in ("_", "SHLVL"):
            told["env"].pop(key, None)
    assert second == first
    assert standby(run, "ready", pid) != pid  # made anew once the next worker was there
    end(run, supervisor)


def test_one_that_is_killed_is_made_anew(make_run: MakeRun) -> None:
    """The death of a standby, idle or warming, is no matter of the worker, and another takes its place."""
    run = prepare(make_run, job())
    supervisor = run.start()
    worker = facts(run, 1)["pid"]
    first = standby(run, "ready")
    kill(first)
    second = standby(run, "ready", first)
    assert "the standby ended with -9" in supervisor.output
    assert not gone(worker)
    assert run.attempts() == [1]
    kill(worker)
    assert facts(run, 2)["pid"] == second
    end(run, supervisor)


def test_one_that_is_still_warming_is_not_waited_for(make_run: MakeRun) -> None:
    """A worker that dies before its standby is ready is replaced by a new process; a kill of the warming one too."""
    run = prepare(make_run, job(preload=["slow"]))
    (run.folder / "slow.py").write_text(SLOW)
    supervisor = run.start()
    first = facts(run, 1)
    run.until((run.folder / "warming").exists, "a standby that warms")
    warming = standby(run, "warming")
    # the thread that warms yields; the one that will train does not
    assert sorted(niceness(warming)) == sorted([os.nice(0), 10])
    kill(first["pid"])
    assert facts(run, 2)["pid"] != warming
    assert not gone(warming)
    kill(warming)
    assert standby(run, "warming", warming)
    (run.folder / "go-on").touch()
    pid = standby(run, "ready")
    kill(facts(run, 2)["pid"])
    assert facts(run, 3)["pid"] == pid
    end(run, supervisor)


@pytest.mark.parametrize("state", ["ready", "warming"])
def test_it_dies_with_its_supervisor(make_run: MakeRun, state: str) -> None:
    """A supervisor that is killed leaves no standby behind, whatever that is about."""
    run = prepare(make_run, job(preload=["slow"]))
    (run.folder / "slow.py").write_text(SLOW)
    if state == "ready":
        (run.folder / "go-on").touch()
    supervisor = run.start()
    facts(run, 1)
    pid = standby(run, state)
    assert pid in run.of_attempts()  # a next start would find it too
    supervisor.kill()
    run.until(lambda: gone(pid), "the end of the standby")


def _change_script(run: Run) -> None:
    with (run.folder / "train.py").open("a") as file:
        file.write("# changed\n")


def _change_module(run: Run) -> None:
    (run.folder / "mine.py").write_text("x = 22\n")


def _change_environment(run: Run) -> None:
    run.write_job(job(preload=["mine"], env={"OMP_NUM_THREADS": "3"}))
    assert run.cli("reload", str(run.directory.path)).code == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_change_script, 'the script "train.py" changed'),
        (_change_module, 'mine.py", which it has imported, changed'),
    ],
)
def test_one_that_does_not_fit_any_more_is_noticed(make_run: MakeRun, change: Any, reason: str) -> None:
    """A changed script or module makes it useless: said, and a new process is started instead."""
    run, supervisor, worker, pid = beside(make_run, "mine")
    change(run)
    kill(worker)
    second = facts(run, 2)
    assert second["pid"] != pid
    assert not second["preloaded"]
    assert "the standby can't be used: " in supervisor.output
    assert reason in supervisor.output
    assert gone(pid)
    assert standby(run, "ready", pid)
    end(run, supervisor)


def test_a_changed_job_file_makes_another(make_run: MakeRun) -> None:
    """After a reload that changes the environment the standby is one of the new job."""
    run, supervisor, worker, pid = beside(make_run, "mine")
    _change_environment(run)
    other = standby(run, "ready", pid)
    assert gone(pid)
    kill(worker)
    second = facts(run, 2)
    assert second["pid"] == other
    assert second["env"]["OMP_NUM_THREADS"] == "3"
    end(run, supervisor)


def test_a_stop_at_the_moment_of_use_stops_it(make_run: MakeRun) -> None:
    """TERM while the standby is taking its place is carried out on it; no second worker is started."""
    run, supervisor, worker, pid = beside(make_run)
    os.kill(pid, signal.SIGSTOP)
    kill(worker)
    run.until_status(lambda s: s["state"] == "launching", "a launch")
    supervisor.send(signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)
    assert supervisor.wait() == ExitCode.SAVED, run.report()
    run.nothing_left()
    assert run.attempts() == [1, 2]


def test_its_first_words_are_heard_however_early_they_come(make_run: MakeRun) -> None:
    """A standby that is ready before the supervisor has read that it took its place is attached all the same."""
    run, supervisor, worker, pid = beside(make_run)
    os.kill(pid, signal.SIGSTOP)
    kill(worker)
    run.until_status(lambda s: s["state"] == "launching", "a launch")
    supervisor.send(signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    run.until(lambda: "TOLD" in run.log(2), "its first words")
    supervisor.send(signal.SIGCONT)
    run.until_status(lambda s: s["state"] == "running" and s["worker"] == pid, "the standby as the worker")
    end(run, supervisor)


def test_one_that_does_not_answer_is_ended_before_another_starts(make_run: MakeRun) -> None:
    """A standby that was stopped is killed after some seconds, and only then a new process is the worker."""
    run, supervisor, worker, pid = beside(make_run)
    os.kill(pid, signal.SIGSTOP)
    kill(worker)
    assert facts(run, 2)["pid"] != pid
    assert gone(pid)
    assert run.attempts() == [1, 2]
    end(run, supervisor)


PATIENT = """
import os, socket, time
with open("born", "a") as file:
    print(os.getpid(), time.time(), file=file)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
    channel.sendto(b"READY=1\\nX_OUTLAST_PROTOCOL=1\\nX_OUTLAST_RANK=0\\nX_OUTLAST_STEP=0", os.environ["NOTIFY_SOCKET"])
while not os.path.exists("end-" + os.environ["OUTLAST_ATTEMPT"]):
    time.sleep(0.005)
with open("died", "w") as file:
    print(time.time(), file=file)
os._exit(3)
"""


def test_it_does_not_take_its_place_before_the_backoff_is_over(make_run: MakeRun) -> None:
    """What is done ahead of a start is done ahead; a standby becomes the worker no earlier than a new process."""
    run = make_run(job(restart={"backoff": "300ms..300ms", "without_progress": 50}))
    (run.folder / "train.py").write_text(PATIENT)
    supervisor = run.start()
    pid = standby(run, "ready")
    (run.folder / "end-1").touch()
    born = run.folder / "born"
    second = run.until(lambda: whole_lines(born)[1:], "the second worker")[0].split()
    assert int(second[0]) == pid
    assert float(second[1]) - float((run.folder / "died").read_text()) >= 0.3
    end(run, supervisor)


def test_a_stop_ends_an_idle_one_and_its_memory_is_shown(make_run: MakeRun) -> None:
    """status says how much memory only the standby has; after a stop no process is left."""
    run = prepare(make_run, job())
    supervisor = run.start()
    facts(run, 1)
    pid = standby(run, "ready")
    status = run.status()
    assert status is not None
    view = status["standby"]
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    assert 1 << 20 < view["uss"] <= view["pss"] < 1 << 30
    assert "Pss" in rollup
    shown = run.cli("status", str(run.directory.path)).out
    assert f"ready, process {pid}, " in shown
    assert "MiB of memory that only it has" in shown
    end(run, supervisor)
    assert gone(pid)
    status = run.status()
    assert status is not None
    assert status["standby"] is None


def test_a_module_that_seeds_or_draws_is_refused(make_run: MakeRun) -> None:
    """What touches a random stream at import can't be preloaded: said once, and the run goes on without."""
    run = prepare(make_run, job(preload=["seeding"]))
    (run.folder / "seeding.py").write_text("import random\nrandom.seed(1)\n")
    supervisor = run.start()
    worker = facts(run, 1)["pid"]
    text = "no standby for this job: importing seeding seeds the random stream of random or draws from it"
    run.until(lambda: text in supervisor.output, "the refusal")
    kill(worker)
    assert not facts(run, 2)["preloaded"]
    run.until_status(lambda s: s["state"] == "running" and s["step"] > 5, "the next worker")
    assert supervisor.output.count("no standby for this job") == 1
    end(run, supervisor)


def test_kills_with_a_standby_end_in_the_same_state(make_run: MakeRun, reference: Reference) -> None:
    """The toy, killed and carried on by standbys, comes to the undisturbed run's state to the last bit."""
    slowly = ("--step-seconds", "0.08")  # so that each standby is ready before the end
    quick = {"backoff": "10ms..10ms"}
    run = make_run(toy(*slowly, save={"every_steps": 20}, standby=True, restart=quick))
    supervisor = run.start()
    taken: list[int] = []
    run.until_step(30)
    for _ in range(2):
        pid = standby(run, "ready")
        status = run.status()
        assert status is not None
        kill(status["worker"])
        taken.append(pid)
        run.until(lambda: (run.status() or {}).get("worker") == taken[-1], "the standby as the worker")
    assert supervisor.wait(150) == ExitCode.DONE, run.report()
    assert len(set(taken)) == 2
    assert run.attempts() == [1, 2, 3]
    reference.hold_end(run)


def test_what_a_preloaded_module_started_ends_with_the_run(make_run: MakeRun) -> None:
    """A process that the import of a module leaves in the background is gone when the supervisor is."""
    run = prepare(make_run, job(preload=["starts"]))
    code = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    (run.folder / "starts.py").write_text(code)
    supervisor = run.start()
    facts(run, 1)
    (started,) = children(standby(run, "ready"))
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == ExitCode.SAVED
    run.until(lambda: gone(started), "its end")
