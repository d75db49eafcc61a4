"""The supervisor where little goes by the book: odd callers, odd workers, odd disks. No training is needed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.bare import PYTHON, WAITS, bare, needs_pids, up
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import OUTLAST, PATIENCE, children, gone
from tests.waiting import wait_until


def state_of(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process are of."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


# --- odd callers ---


def test_a_caller_that_blocks_every_signal_is_undone(make_run: MakeRun) -> None:
    """With CHLD and all others blocked by whoever starts it the supervisor hears of deaths and of TERM."""
    run = make_run(bare(["sh", "-c", "exit 0"]))
    blocked = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    assert run.start(wrapper=(shutil.which("python3") or "python3", "-c", blocked)).wait() == 0


def test_a_caller_that_closes_the_standard_streams_is_no_matter(make_run: MakeRun) -> None:
    """With `<&- >&- 2>&-` the run is done, and no file of it became somebody's standard output."""
    run = make_run(bare(["sh", "-c", "echo hello"]))
    closed = run.start(wrapper=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    assert closed.wait() == 0
    assert run.log().splitlines()[-1] == "hello"
    assert run.records("done")


def test_a_path_that_is_no_text_is_refused_in_words(tmp_path: Path) -> None:
    """A run directory whose name is not UTF-8 is bad usage, not a traceback."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    done = subprocess.run(
        [OUTLAST, "run", "--run-dir", folder, "--", "true"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 64
    assert "must be valid UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_path_with_blanks_and_accents_is_a_path(make_run: MakeRun) -> None:
    """A run directory of more than 200 bytes, with blanks and letters of other scripts, works like any."""
    run = make_run(bare(["sh", "-c", 'test "$OUTLAST_RUN" = "$PWD/$NAME"']))
    name = "läuft über Nacht 訓練 " + "é" * 90
    run.write_job(bare(["sh", "-c", 'test "$OUTLAST_RUN" = "$PWD/$NAME"'], run_dir=name, env={"NAME": name}))
    assert run.start().wait() == 0
    assert (run.folder / name / "status.json").exists()


def test_a_terminal_that_closes_is_a_notice(make_run: MakeRun) -> None:
    """HUP with a controlling terminal ends the run with 75, whoever reads the terminal is gone by then."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(run.folder)
        os.execve(OUTLAST, [OUTLAST, "run", str(run.job_file)], run.env)
    up(run)
    os.close(terminal)  # the kernel sends HUP to the session's leader
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 75
    run.nothing_left()


def test_a_broken_job_file_is_not_taken_and_a_good_one_counts_at_once(make_run: MakeRun) -> None:
    """HUP without a terminal reads the job file again: a broken one changes nothing, a new limit counts."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS)
    supervisor = run.start()
    up(run)
    run.job_file.write_bytes(b"\xff\x00: [")
    supervisor.send(signal.SIGHUP)
    supervisor.until(lambda: "the old job stays" in supervisor.output, "word of the broken file")
    run.write_job(bare([PYTHON, "train.py"], stop={"grace": "5s", "time_limit": "1s"}))
    supervisor.send(signal.SIGHUP)
    assert supervisor.wait() == 75
    assert "time_limit" in supervisor.output
    run.nothing_left()


def test_a_start_knows_how_long_saves_took_in_those_before(make_run: MakeRun) -> None:
    """Warned before its first save, an attempt goes by the run's saves and not by the grace, which may be too short."""
    counting = ["{python}", "{scripts}/sealing.py", "100000", "5", "0.02"]
    run = make_run({"command": counting, "stop": {"grace": "20s"}})
    supervisor = run.start()
    supervisor.until(run.verified, "a generation")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    run.write_job({"command": counting, "stop": {"grace": "20s", "time_limit": "1s"}})
    supervisor = run.start()
    assert supervisor.wait() == 75
    told = re.search(r"a step and a save may take ([\d.]+) s", supervisor.output)
    assert told is not None
    assert float(told[1]) < 20, supervisor.output


def test_starts_that_bring_nothing_are_told(make_run: MakeRun) -> None:
    """Who has a time limit shorter than a start and a save is told at the fourth start, and no more after a save."""
    run = make_run({"command": [PYTHON, "train.py"]}, script=WAITS)
    told = []
    for _ in range(4):
        (run.folder / "up").unlink(missing_ok=True)
        supervisor = run.start()
        up(run)
        supervisor.send(signal.SIGTERM)
        assert supervisor.wait() == 75
        told.append("attempts brought no new generation" in supervisor.output)
    assert told == [False, False, False, True]
    run.write_job({"command": ["{python}", "{scripts}/sealing.py", "20", "5", "0"]})
    assert run.start().wait() == 0
    run.write_job({"command": ["{python}", "{scripts}/sealing.py", "40", "5", "0"]})
    supervisor = run.start()
    assert supervisor.wait() == 0
    assert "no new generation" not in supervisor.output


def test_what_a_worker_saves_after_its_supervisor_was_killed_is_not_nothing(make_run: MakeRun) -> None:
    """A start after several such kills goes on from the newest of these saves, and does not say that there is none."""
    run = make_run({"command": ["{python}", "{scripts}/plain.py", "--steps", "100000", "--seconds", "0.01"]})
    for number in range(1, 5):
        supervisor = run.start()
        run.until_step(1, attempt=number)
        supervisor.kill()
        run.until(lambda: not run.of_attempts(), "the end of the worker")
    assert [found.path.name.rpartition(".")[2] for found in run.verified()[:3]] == ["a0004", "a0003", "a0002"]
    assert "no new generation" not in "".join(each.output for each in run.supervisors)


def test_a_reload_does_not_send_the_running_worker_another_ones_signals(make_run: MakeRun) -> None:
    """After signals were changed in the job file the running worker is stopped with the one it knows."""
    script = WAITS.replace(
        "pathlib.Path('up')",
        "signal.signal(signal.SIGHUP, lambda n, f: (pathlib.Path('hup').touch(), exit(75))); pathlib.Path('up')",
    )
    signals = {"mode": "native", "save": "USR2", "stop": "HUP", "stacks": "USR1"}
    run = make_run(bare([PYTHON, "train.py"], signals=signals), script=script)
    supervisor = run.start()
    up(run)
    run.write_job(bare([PYTHON, "train.py"], signals={**signals, "stop": "XCPU"}))
    assert run.cli("reload", str(run.directory.path)).code == 0
    supervisor.send(signal.SIGXCPU)  # of the job as it is now, and not yet this worker's
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    assert (run.folder / "hup").exists()


def test_a_second_interrupt_ends_what_ignores_the_first(make_run: MakeRun) -> None:
    """The first INT asks, the second kills; both have the exit code 75."""
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
    run = make_run(bare([PYTHON, "train.py"], stop={"grace": "10m"}), script=script)
    supervisor = run.start()
    up(run)
    supervisor.send(signal.SIGINT)
    supervisor.until(lambda: "is told to end" in supervisor.output, "the first one's effect")
    supervisor.send(signal.SIGINT)
    assert supervisor.wait() == 75
    run.nothing_left()


def test_time_stands_still_for_the_worker_too(make_run: MakeRun) -> None:
    """TSTP stops supervisor and worker, CONT lets both go on, and the journal says how long it was."""
    run = make_run(bare([PYTHON, "train.py"]), script=WAITS)
    supervisor = run.start()
    up(run)
    worker = supervisor.worker()
    supervisor.send(signal.SIGTSTP)
    wait_until(
        lambda: state_of(supervisor.pid) == "T" and state_of(worker) == "T", PATIENCE, "both to be stopped"
    )
    supervisor.send(signal.SIGCONT)
    wait_until(lambda: state_of(worker) != "T", PATIENCE, "the worker to go on")
    supervisor.until(lambda: run.records("paused"), "the record")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75


# --- odd workers ---


def test_many_attempts_leave_nothing_behind(make_run: MakeRun) -> None:
    """After 200 attempts that crash the supervisor has the descriptors and memory that it had after 20."""
    restart = {"without_progress": 100_000, "backoff": "1ms..2ms"}
    run = make_run(bare(["sh", "-c", "(exit 1 &) ; exit 3"], restart=restart))
    supervisor = run.start()

    def after(attempts: int) -> int:
        there = run.directory.attempt_log(attempts).exists
        supervisor.until(there, f"attempt {attempts}", 5 * PATIENCE)
        status = Path(f"/proc/{supervisor.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    supervisor.until(lambda: "anon_inode:inotify" in open_files(supervisor.pid), "the watch for requests")
    memory = after(max(run.attempts()) + 20)
    files = min(len(open_files(supervisor.pid)) for _ in range(20))  # more while an attempt is being started
    assert after(200) <= memory + 2048, "KiB"
    supervisor.until(lambda: len(open_files(supervisor.pid)) <= files, f"no more than {files} open files")
    supervisor.until(lambda: not any(map(gone, children(supervisor.pid))), "the reaping of all orphans")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75


def test_a_save_behind_a_shell_is_not_cut_by_another_signal(make_run: MakeRun) -> None:
    """Where HUP means stop, a worker whose shell HUP has ended is sent HUP, and never TERM."""
    script = (
        "import signal, sys, time, pathlib\n"
        "def save(n, f):\n"
        "    pathlib.Path('saving').touch()\n"
        "    while not pathlib.Path('enough').exists(): time.sleep(0.01)\n"
        "    pathlib.Path('saved').touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGHUP, save)\n" + WAITS
    )
    signals = {"mode": "native", "save": "USR2", "stop": "HUP", "stacks": "USR1"}
    run = make_run(bare(["sh", "-c", f"{sys.executable} train.py; exit $?"], signals=signals), script=script)
    supervisor = run.start()
    up(run)
    supervisor.send(signal.SIGHUP)
    run.until(lambda: (run.folder / "saving").exists(), "the worker's handler")
    run.until(lambda: len(run.of_attempts()) == 1, "the end of its shell")
    (run.folder / "enough").touch()
    assert supervisor.wait() == 75
    assert (run.folder / "saved").exists()


def test_a_worker_gets_its_stop_signal_when_the_supervisor_dies(make_run: MakeRun) -> None:
    """The signal at the supervisor's death is the one that the job file names for a stop."""
    script = (
        "import signal, pathlib\n"
        "signal.signal(signal.SIGHUP, lambda n, f: (pathlib.Path('saved').touch(), exit(75)))\n" + WAITS
    )
    signals = {"mode": "native", "stop": "HUP"}
    run = make_run(bare([PYTHON, "train.py"], signals=signals), script=script)
    supervisor = run.start()
    up(run)
    supervisor.kill()
    run.until(lambda: (run.folder / "saved").exists(), "the worker's save")
    run.nothing_left()


def test_a_survivor_without_our_marks_is_found_by_its_lock(make_run: MakeRun) -> None:
    """A worker that cleared its environment and ignores TERM is ended by the next start, not waited for."""
    command = ["env", "-i", "sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.1 >/dev/null; done"]
    run = make_run(bare(command, stop={"grace": "300ms"}))
    first = run.start()
    up(run)
    worker = children(first.pid)[0]
    first.kill()
    assert not gone(worker)
    run.write_job(bare(["true"], stop={"grace": "300ms"}))
    assert run.start().wait() == 0
    assert gone(worker)


def test_a_run_begun_anew_ends_what_is_left_of_the_old_one(make_run: MakeRun) -> None:
    """With --fresh a worker of the old run that outlived its supervisor is ended before the new one starts."""
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
    run = make_run(bare([PYTHON, "train.py"], stop={"grace": "300ms"}), script=script)
    first = run.start()
    up(run)
    worker = first.worker()
    first.kill()
    run.write_job(bare(["sh", "-c", f"kill -0 {worker} && exit 1; exit 0"], stop={"grace": "300ms"}))
    assert run.start("--fresh").wait() == 0
    assert gone(worker)


def test_each_of_two_stops_is_answered_and_none_is_left_for_later(make_run: MakeRun) -> None:
    """A run stopped twice is held, and after a release no old request stops it again."""
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
    run = make_run(bare([PYTHON, "train.py"], stop={"grace": "200ms"}), script=script)
    first = run.start()
    up(run)
    asked = [
        subprocess.Popen([OUTLAST, "stop", str(run.directory.path)], cwd=run.folder, env=run.env)
        for _ in range(2)
    ]
    assert [p.wait(PATIENCE) for p in asked] == [0, 0]
    assert first.wait() == 70
    assert not list(run.directory.requests.iterdir())
    (run.folder / "up").unlink()
    second = run.start("--release")
    up(run)
    second.send(signal.SIGTERM)
    assert second.wait() == 75


# --- the first process of a container ---


@needs_pids
def test_as_the_first_process_it_heeds_term_and_reaps_orphans(make_run: MakeRun) -> None:
    """As PID 1 TERM is honoured, orphans are reaped, and those of somebody else in the container are spared."""
    script = (
        "import os, subprocess, pathlib, time\n"
        # an orphan that ends, and one that is none of the attempt's and stays
        "subprocess.run(['sh', '-c', '(exit 0 &)'])\n"
        "subprocess.run(['env', '-i', 'sh', '-c', 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $!'])\n"
        "while any(' Z ' in pathlib.Path(p, 'stat').read_text() for p in pathlib.Path('/proc').iterdir()\n"
        "          if p.name.isdigit() and p.name != '1'): time.sleep(0.01)\n" + WAITS
    )
    run = make_run(bare([PYTHON, "train.py"]), script=script)
    container = run.start(wrapper=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    up(run)
    inside = children(container.pid)
    assert len(inside) == 1
    os.kill(inside[0], signal.SIGTERM)
    assert container.wait() == 75
    assert "what is left does not end" not in container.output


def test_a_hook_and_what_it_leaves_in_the_background_are_its_own(make_run: MakeRun) -> None:
    """A hook runs although its log cannot be opened, and its exit does not wait for what it left behind."""
    hook = "(sleep 1000 & echo $! > ../background); echo $OUTLAST_HOOK > ../told"
    run = make_run(bare(["true"], hooks={"done": hook}))
    (run.directory.logs / "hooks.log").mkdir(parents=True)
    assert run.start().wait() == 0
    assert (run.folder / "told").read_text() == "done\n"
    background = int((run.folder / "background").read_text())
    assert not gone(background)
    assert run.records("hook")[-1].data == {"name": "done", "code": 0}


def test_taking_over_can_be_called_off(make_run: MakeRun) -> None:
    """Whoever waits for another supervisor to end is itself ended by TERM, with 75, and the other goes on."""
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
    run = make_run(bare([PYTHON, "train.py"], stop={"grace": "10m"}), script=script)
    first = run.start()
    up(run)
    second = run.start("--takeover")
    second.until(lambda: "taking over" in second.output, "its word")
    second.send(signal.SIGTERM)
    assert second.wait() == 75
    assert first.running()


def test_what_a_worker_starts_that_speaks_to_a_service_manager_is_no_trainer(make_run: MakeRun) -> None:
    """Another `outlast run`, or a server that says READY, does not attach: the run is done when its command is."""
    inner = f'"{OUTLAST}" run --run-dir inner -- true'
    run = make_run({"command": ["sh", "-c", inner], "signals": "native"})
    assert run.start().wait() == 0, run.report()
    assert run.attempts() == [1]
    assert not run.records("attempt_attached")
    assert (run.folder / "inner" / "run.json").exists()
