"""As the first process of a container, without an init below it: signals count from the first moment, orphans are
reaped, others in the container are left alone, and the exit code is the container's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST, Run, Supervisor, children, gone
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_supervisor.schedulers.k8s import JOB, RUNS

pytestmark = needs("namespaces")

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
WAITS = "import signal, time\n{}\nopen('up', 'w').close()\nwhile True: time.sleep(60)\n"


def job(script: str, **more: Any) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", script], "signals": "native", **more}


def first_process(container: Supervisor) -> int:
    """The host's pid of the container's PID 1."""
    return container.until(lambda: next(iter(children(container.pid)), None), "a first process")


def up(run: Run) -> None:
    run.until((run.folder / "up").exists, "the worker")


# Stands before the real package: it holds the import until it is let through.
HELD_UP = """
import sys, os
open(os.environ["AT_THE_GATE"], "w").close()
os.close(os.open(os.environ["GATE"], os.O_RDONLY))
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["msgspec"]
import msgspec
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_that_comes_while_it_loads_is_kept(make_run: MakeRun, name: str) -> None:
    """A signal to stop that comes before a single library is loaded ends the container with 75, nothing started."""
    run = make_run(job(WAITS.format("")))
    (run.folder / "first/msgspec").mkdir(parents=True)
    (run.folder / "first/msgspec/__init__.py").write_text(HELD_UP)
    gate, arrived = run.folder / "gate", run.folder / "arrived"
    os.mkfifo(gate)
    env = {"PYTHONPATH": str(run.folder / "first"), "GATE": str(gate), "AT_THE_GATE": str(arrived)}
    container = run.start(wrapper=CONTAINER, env=env)
    container.until(arrived.exists, "the import")
    os.kill(first_process(container), signal.Signals[name])
    os.close(os.open(gate, os.O_WRONLY))
    assert container.wait() == ExitCode.SAVED, container.output
    assert not (run.folder / "up").exists()


def test_term_a_third_of_a_second_after_its_start_is_honoured(make_run: MakeRun) -> None:
    """From 300 ms on, or where the machine is slow from its handlers on, TERM ends it with 75, whatever it is at."""
    run = make_run(job(WAITS.format("")))
    container = run.start(wrapper=CONTAINER)
    pid = first_process(container)
    container.until(lambda: catches(pid, signal.SIGTERM), "handlers")
    run.until(lambda: age(pid) >= 0.3, "that age")
    os.kill(pid, signal.SIGTERM)
    assert container.wait() == ExitCode.SAVED, container.output
    run.nothing_left()


def catches(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def age(pid: int) -> float:
    """Seconds since a process was started."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    ticks = int(stat[stat.rindex(b")") + 2 :].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_stop_reaches_the_worker(make_run: MakeRun, name: str) -> None:
    """TERM or INT to the first process alone has the worker save and end, and the container exits 75."""
    saves = (
        "def save(*_): open('saved', 'w').close(); raise SystemExit(75)\nsignal.signal(signal.SIGTERM, save)"
    )
    run = make_run(job(WAITS.format(saves)))
    container = run.start(wrapper=CONTAINER)
    up(run)
    os.kill(first_process(container), signal.Signals[name])
    assert container.wait() == ExitCode.SAVED, container.output
    assert (run.folder / "saved").exists()


def test_usr1_has_the_worker_save_and_go_on(make_run: MakeRun) -> None:
    """USR1 to the first process is passed on as a wish to save, and everything goes on."""
    saves = "def save(*_): open('saved', 'w').close()\nsignal.signal(signal.SIGUSR1, save)"
    run = make_run(job(WAITS.format(saves)))
    container = run.start(wrapper=CONTAINER)
    up(run)
    os.kill(first_process(container), signal.SIGUSR1)
    container.until((run.folder / "saved").exists, "a save")
    assert run.attempts() == [1]
    container.send(signal.SIGKILL)


# Orphans by the dozen, of the worker and of a shell that is not ours; then the first attempt fails.
LITTER = """
import os, pathlib, subprocess, time
for _ in range(20):
    subprocess.run(["sh", "-c", "(exit 0 &) ; (sleep 0.01 &)"])
if os.environ["OUTLAST_ATTEMPT"] == "1":
    subprocess.Popen(["sleep", "1000"])
    while not pathlib.Path("fail").exists(): time.sleep(0.01)
    raise SystemExit(1)
open("up", "w").close()
while True: time.sleep(60)
"""


def test_orphans_are_reaped_and_a_shell_in_the_container_is_spared(make_run: MakeRun) -> None:
    """No zombie stays of anybody's orphans; what an attempt left ends with it, and what a person started does not."""
    run = make_run(job(LITTER))
    container = run.start(wrapper=CONTAINER)
    pid = first_process(container)
    container.until(lambda: run.records(journal.ATTEMPT_STARTED), "an attempt")
    enter = ["nsenter", "--target", str(pid), "--pid", "--mount"]
    words = "(exec sleep 2000 >/dev/null 2>&1 </dev/null &); (exit 0 &); exec cat"
    shell = subprocess.Popen(
        [*enter, "sh", "-c", words], stdin=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
    )
    try:
        theirs = container.until(lambda: sleeping(pid, "2000"), "an orphan of the shell's")
        ours = container.until(lambda: sleeping(pid, "1000"), "a child of the worker's")
        (run.folder / "fail").touch()
        up(run)
        assert gone(ours)
        assert not gone(theirs)
        assert shell.poll() is None
        container.until(lambda: not zombies(pid), "the end of all zombies")
        os.kill(pid, signal.SIGTERM)
        assert container.wait() == ExitCode.SAVED, container.output
        assert "does not end by itself" not in container.output
    finally:
        shell.kill()
        shell.communicate()


def sleeping(root: int, seconds: str) -> int | None:
    return next((pid for pid in children(root) if _words(pid) == ["sleep", seconds]), None) or next(
        (pid for child in children(root) for pid in children(child) if _words(pid) == ["sleep", seconds]),
        None,
    )


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def zombies(root: int) -> list[int]:
    return [pid for pid in children(root) if gone(pid) and Path(f"/proc/{pid}").exists()]


def test_the_exit_code_is_the_containers(make_run: MakeRun) -> None:
    """Done, given up, a job file that is wrong and a run that another container has: each has its code."""
    run = make_run(job("", restart={"never_on": [3]}))
    assert run.start(wrapper=CONTAINER).wait() == ExitCode.DONE
    run.write_job(job("raise SystemExit(3)", restart={"never_on": [3]}))
    assert run.start(wrapper=CONTAINER).wait() == ExitCode.HELD
    run.write_job(job("", workdir="nowhere"))
    assert run.start(wrapper=CONTAINER).wait() == ExitCode.USAGE
    run.write_job(job(WAITS.format("")))
    has = run.start(wrapper=CONTAINER)
    up(run)
    other = run.start(wrapper=CONTAINER)
    assert other.wait() == ExitCode.BUSY
    assert has.running()
    has.send(signal.SIGKILL)


def test_the_manifests_container_ends_within_its_grace_period(make_run: MakeRun, tmp_path: Path) -> None:
    """The Job's own command as PID 1: one that will not end is killed, with 75, before the kubelet would do it."""
    deaf = WAITS.format("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    run = make_run(job(deaf, stop={"grace": "200ms"}))
    shown = run.cli("k8s", str(run.job_file), "--image", "i", "--claim", "c", "--json", "--job-file", JOB)
    pod = json.loads(shown.out)["spec"]["template"]["spec"]
    places = {JOB: str(run.job_file), f"{RUNS}/e2e": str(run.directory.path), "outlast": OUTLAST}
    command = [places.get(word, word) for word in pod["containers"][0]["command"]]
    log = run.folder / "supervisor-900.txt"
    with log.open("xb") as file:
        process = subprocess.Popen([*CONTAINER, *command], env=run.env, stdout=file, stderr=file)
    container = Supervisor(run, process, log)
    run.supervisors.append(container)
    up(run)
    os.kill(first_process(container), signal.SIGTERM)
    assert container.wait(pod["terminationGracePeriodSeconds"]) == ExitCode.SAVED
