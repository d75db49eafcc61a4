"""The command line: what each command says, on which stream, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from outlast_jobs import events
from outlast_jobs.history import read_history
from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.journal import JournalWriter
from outlast_jobs.locks import Busy, RunLock
from outlast_jobs.requests import read_requests, remove_request
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import _COMMANDS, invoke
from outlast_supervisor.options import RunOptions

JOB = "name: tiny\ncommand: [sleep, '1']\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    """A run in runs/tiny that nobody supervises."""
    made = RunDirectory(folder / "runs" / "tiny")
    made.create()
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """What `run` hands to the supervisor, which is not there and answers 75."""
    got: list[RunOptions] = []

    def supervise(options: RunOptions) -> int:
        got.append(options)
        return 75

    fake = types.ModuleType("outlast_supervisor.supervise")
    fake.supervise = supervise  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outlast_supervisor.supervise", fake)
    return got


def status_of(run: RunDirectory, **changes: Any) -> None:
    """Write a snapshot as a supervisor does."""
    base: dict[str, Any] = {
        "as_of": time.time(),
        "name": "tiny",
        "host": hostname(),
        "state": "running",
        "step": 7,
    }
    run.write_status({**base, **changes})


def journal(run: RunDirectory, *records: tuple[str, dict[str, Any]]) -> None:
    """Record events as a supervisor does."""
    writer = JournalWriter.open(run)
    writer.write([writer.append(event, data) for event, data in records])
    writer.close()


# -- the command line as such ------------------------------------------------------------------------------


def test_every_command_has_help_that_ends_with_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each command and of the whole exits 0; the last lines are exit codes."""
    for arguments in ([], *([name] for name in _COMMANDS)):
        assert invoke([*arguments, "--help"]) == 0
        out = capsys.readouterr().out
        codes = out.split("Exit codes:\n", 1)
        assert len(codes) == 2
        assert all(line.split()[0].isdigit() for line in codes[1].strip().splitlines())


@pytest.mark.parametrize("name", [name for name, (module, _, _) in _COMMANDS.items() if module == "later"])
def test_what_is_not_there_yet_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A clear "not yet" on stderr and 64, whatever arguments follow."""
    assert invoke([name, "job.yaml", "--submit"]) == 64
    seen = capsys.readouterr()
    assert seen.err == f'outlast: "outlast {name}": not yet; this version has no such command\n'
    assert seen.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats"], 'outlast: no command "stats"; did you mean "status"?; see "outlast --help"'),
        (["run"], 'outlast: name a job, or a command after --; see "outlast run --help"'),
        (["run", "--"], 'outlast: name a job, or a command after --; see "outlast run --help"'),
        (["run", "--nope", "x"], "outlast: No such option"),
        (["run", "bytelmm"], 'did you mean "bytelm"?'),
        (["status", "nix"], '"nix" is no run directory, no run in "runs" and no job'),
        (["status"], "no run here"),
        (["logs", "toy"], 'the job "toy" has not been run yet'),
        (["save"], "no run here"),
        (["completion", "csh"], "csh"),
    ],
)
def test_bad_usage_is_64_and_one_line_on_stderr(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed, on what, and the cure."""
    assert invoke(arguments) == 64
    seen = capsys.readouterr()
    assert message in seen.err
    assert seen.err.startswith("outlast: ")
    assert seen.err.count("\n") == 1
    assert seen.out == ""


def test_a_wrong_job_file_is_64_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job file's own error, unchanged."""
    (folder / "job.yaml").write_text("name: x\ncommand: [a]\nsave: {evry_steps: 5}\n")
    assert invoke(["run", "job.yaml"]) == 64
    assert "job.yaml:3: save.evry_steps: " in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error(folder: Path) -> None:
    """`outlast schema | head -1` prints no traceback."""
    line = f"{sys.executable} -m outlast_supervisor.cli schema | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_status_loads_little(run: RunDirectory) -> None:
    """Imports make a command slow: no rich, watchdog, psutil, yaml or torch to look at a run."""
    status_of(run)
    heavy = (
        "rich",
        "watchdog",
        "psutil",
        "yaml",
        "torch",
        "numpy",
        "asyncio",
        "outlast_supervisor.supervise",
    )
    code = (
        "import sys\nfrom outlast_supervisor.commands import invoke\n"
        f"code = invoke(['status'])\nprint(code, [m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_completion_knows_commands_and_options() -> None:
    """The three shells' scripts, and what a shell asks for."""
    for shell in ("bash", "zsh", "fish"):
        line = [sys.executable, "-m", "outlast_supervisor.cli", "completion", shell]
        assert "_OUTLAST_COMPLETE" in subprocess.run(line, capture_output=True, text=True, check=True).stdout
    environment = {
        **os.environ,
        "_OUTLAST_COMPLETE": "bash_complete",
        "COMP_WORDS": "outlast sta",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "outlast_supervisor.cli"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plain,status" in done.stdout


# -- run ---------------------------------------------------------------------------------------------------


def test_run_hands_over_the_job_and_returns_its_code(folder: Path, asked: list[RunOptions]) -> None:
    """A job file with every flag; the supervisor's code is the command's."""
    (folder / "job.yaml").write_text(JOB)
    flags = [
        "--fresh",
        "--release",
        "--takeover",
        "--quiet",
        "--allow-rng-loss",
        "--verbose",
        "--from",
        "gen",
    ]
    assert invoke(["run", "job.yaml", "--run-dir", "elsewhere", *flags]) == 75
    options = asked[0]
    assert options.job.command == ("sleep", "1")
    assert options.job.run_dir == str(folder / "elsewhere")
    assert (options.fresh, options.release, options.takeover, options.quiet, options.verbose) == (True,) * 5
    assert options.allow_rng_loss
    assert options.from_generation == "gen"


def test_arguments_after_the_dashes_are_appended_and_never_looked_at(
    folder: Path, asked: list[RunOptions]
) -> None:
    """`JOB -- args` adds to the job's command; `-- command` is the command, dashes, options and all."""
    (folder / "job.yaml").write_text(JOB)
    invoke(["run", "job.yaml", "--", "--steps", "5", "--", "--help"])
    assert asked[0].job.command == ("sleep", "1", "--steps", "5", "--", "--help")
    assert asked[0].extra == ("--steps", "5", "--", "--help")
    invoke(["run", "--", "python", "train.py", "--fresh"])
    assert asked[1].job.command == ("python", "train.py", "--fresh")
    assert asked[1].job.signals.mode == "native"
    assert asked[1].extra == ()
    assert not asked[1].fresh


def test_a_shipped_job_runs_by_name_and_lies_here(folder: Path, asked: list[RunOptions]) -> None:
    """`outlast run toy` needs no file; its run directory is under the current folder."""
    invoke(["run", "toy"])
    assert asked[0].job.run_dir == str(folder / "runs" / "toy")


def test_run_as_json_ends_with_the_last_snapshot(
    folder: Path, asked: list[RunOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that starts runs reads how one ended from stdout."""
    (folder / "job.yaml").write_text(JOB)
    run = RunDirectory(folder / "runs" / "tiny")
    run.create()
    status_of(run, state="finished")
    assert invoke(["run", "job.yaml", "--json"]) == 75
    assert json.loads(capsys.readouterr().out)["state"] == "finished"


def test_signals_that_come_while_run_loads_are_kept(folder: Path) -> None:
    """TERM, INT, HUP and USR1 before anything is imported neither end the process nor are they lost."""
    (folder / "job.yaml").write_text(JOB)
    code = (
        "import os, signal, sys, types\n"
        "from outlast_supervisor import cli, early\n"
        "loaded = [m for m in ('click', 'msgspec', 'outlast_jobs.contract') if m in sys.modules]\n"
        "fake = types.ModuleType('supervise')\n"
        "fake.supervise = lambda options: print(loaded, early.drain(), early.drain()) or 0\n"
        "sys.modules['outlast_supervisor.supervise'] = fake\n"
        "install = early.install\n"
        "def and_signal():\n"
        "    install()\n"
        "    for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):\n"
        "        os.kill(os.getpid(), n)\n"
        "early.install = and_signal\n"
        "sys.argv = ['outlast', 'run', 'job.yaml']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers = [int(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM)]
    assert done.stdout.strip() == f"[] {numbers} []"


def test_signals_that_the_caller_has_ignored_stay_ignored(folder: Path) -> None:
    """nohup and a background start of a shell are obeyed; other commands keep Ctrl-C as it is."""
    code = (
        "import signal\nfrom outlast_supervisor import early\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nearly.install()\n"
        "hup, term = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)\n"
        "print(hup is signal.SIG_IGN, term is early._keep)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"


# -- status ------------------------------------------------------------------------------------------------


def test_status_finds_runs_where_one_stands(
    run: RunDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """runs/* by default, the folder itself inside a run, and by folder, name or job file."""
    status_of(run)
    (folder / "job.yaml").write_text(JOB)
    for arguments in ([], ["runs"], ["runs/tiny"], ["tiny"], ["job.yaml"], ["runs/tiny", str(run.path)]):
        assert invoke(["status", "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [item["status"]["name"] for item in found] == ["tiny"]
    monkeypatch.chdir(run.path)
    assert invoke(["status"]) == 0
    assert "tiny" in capsys.readouterr().out


def test_status_finds_the_runs_of_jobs_one_folder_below(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `outlast new mine` and a run, `outlast status` and `outlast status mine` need no path."""
    made = RunDirectory(folder / "mine" / "runs" / "mine")
    made.create()
    status_of(made, name="mine")
    for arguments in ([], ["mine"]):
        assert invoke(["status", "--json", *arguments]) == 0
        assert [item["status"]["name"] for item in json.loads(capsys.readouterr().out)] == ["mine"]


def test_status_of_a_killed_supervisor_is_told_without_a_lock(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead process of this host is seen at once; the lock is neither taken nor made."""
    gone = subprocess.Popen(["sleep", "60"])
    identity = ProcessIdentity.of(gone.pid)
    gone.kill()
    gone.wait()
    status_of(run, supervisor=str(identity))
    assert invoke(["status"]) == 0
    out = capsys.readouterr().out
    assert "gone since" in out
    assert not run.lock.exists()


def test_status_without_a_snapshot_comes_from_the_journal(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost or damaged status.json hides neither a hold nor the end."""
    run.status_json.write_text('{"schema": "outl')
    journal(run, (events.HELD, {"by": "ann", "reason": "stopped by ann"}))
    assert invoke(["status"]) == 0
    assert "held: stopped by ann" in capsys.readouterr().out


def test_status_changes_nothing(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking writes no byte, so that whoever may only read can look."""
    status_of(run)

    def content() -> dict[str, Any]:
        return {str(path): path.stat() for path in sorted(run.path.rglob("*"))}

    before = content()
    for arguments in (["status"], ["logs"], ["verify"], ["status", "--json"]):
        invoke(arguments)
    assert {name: found.st_mtime_ns for name, found in content().items()} == {
        name: found.st_mtime_ns for name, found in before.items()
    }


def test_quiet_status_shows_only_what_is_wrong(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """For cron: silence when all is well."""
    status_of(run)
    assert invoke(["status", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    status_of(run, unprotected="no space left")
    assert invoke(["status", "--quiet"]) == 0
    assert "unprotected" in capsys.readouterr().out


def test_watch_shows_it_again_when_it_changes_and_ends_with_an_interrupt(run: RunDirectory) -> None:
    """`--watch --json` is one line a change, for programs."""
    status_of(run, step=1)
    line = [sys.executable, "-m", "outlast_supervisor.cli", "status", "--watch"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")))  # type: ignore[union-attr]
        reader.start()
        wait_until(lambda: lines, 20, "the first table")
        status_of(run, step=4711)
        wait_until(lambda: any("4711" in text for text in lines), 20, "the changed step")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        reader.join()


# -- logs --------------------------------------------------------------------------------------------------


def test_logs_are_one_text_with_bars_collapsed(
    run: RunDirectory, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """All attempts in order; `--raw` keeps every byte; an unfinished line gets its end."""
    run.attempt_log(1).write_bytes(b"== attempt 1\n10%\r20%\r30%\nend without newline")
    run.attempt_log(2).write_bytes(b"== attempt 2\n")
    for flags, wanted in (
        ([], b"== attempt 1\n30%\nend without newline\n== attempt 2\n"),
        (["--raw"], b"== attempt 1\n10%\r20%\r30%\nend without newline\n== attempt 2\n"),
        (["-n", "2"], b"end without newline\n== attempt 2\n"),
        (["--attempt", "2"], b"== attempt 2\n"),
        (["--since", "1h", "-n", "1"], b"== attempt 2\n"),
    ):
        assert invoke(["logs", *flags]) == 0
        assert capfdbinary.readouterr().out == wanted


def test_logs_as_json_name_the_attempt(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of JSON a line."""
    run.attempt_log(3).write_bytes(b"a\nb\xff\n")
    assert invoke(["logs", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"attempt": 3, "line": "a"}, {"attempt": 3, "line": "b\ufffd"}]


def test_logs_of_an_attempt_that_was_not_are_an_error(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the attempts that there are."""
    run.attempt_log(1).write_bytes(b"x\n")
    assert invoke(["logs", "--attempt", "9"]) == 64
    assert "there are: 1" in capsys.readouterr().err


def test_following_goes_over_restarts_and_ends_with_the_run(run: RunDirectory) -> None:
    """`logs -f` shows each line once, of every attempt, and ends by itself when the run is done."""
    status_of(run)
    run.attempt_log(1).write_bytes(b"one\n")
    line = [sys.executable, "-m", "outlast_supervisor.cli", "logs", "-f"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")))  # type: ignore[union-attr]
        reader.start()
        wait_until(lambda: lines, 20, "the first line")
        run.attempt_log(2).write_bytes(b"two\n")
        wait_until(lambda: len(lines) == 2, 20, "the second attempt")
        run.attempt_log(2).open("ab").write(b"last\n")
        status_of(run, done=True)
        assert process.wait(20) == 0
        reader.join()
    assert lines == ["one\n", "two\n", "last\n"]


# -- verify ------------------------------------------------------------------------------------------------


def test_verify_without_generations_is_no_success(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing found is not "all verified"."""
    assert invoke(["verify"]) == 1
    assert "no generation found" in capsys.readouterr().err


def test_verify_only_reads_unless_told_and_sets_aside_with_the_reason(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """An incomplete one: told with its reason, 1, left alone; `--quarantine` renames it and journals why."""
    bad = run.checkpoints / "step-000000500.a0001"
    bad.mkdir()
    for target in ("tiny", str(run.checkpoints), str(bad)):
        assert invoke(["verify", target]) == 1
        assert capsys.readouterr().out.startswith("incomplete  step-000000500.a0001  ")
    assert bad.is_dir()
    assert invoke(["verify", "--quarantine"]) == 1
    assert not bad.exists()
    assert (run.checkpoints / "step-000000500.a0001.corrupt-1").is_dir()
    assert "missing" in read_history(run).quarantined["step-000000500.a0001"].reason


def test_verify_sets_nothing_aside_under_a_living_supervisor(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the lock holder renames."""
    bad = run.checkpoints / "step-000000500.a0001"
    bad.mkdir()
    lock = RunLock(run)
    lock.acquire()
    assert invoke(["verify", "--quarantine"]) == 1
    assert "another supervisor has it" in capsys.readouterr().err
    assert bad.is_dir()
    lock.release()


# -- asking ------------------------------------------------------------------------------------------------


@pytest.fixture
def supervised(run: RunDirectory) -> Iterator[Callable[[bool, str], None]]:
    """Somebody has the run and answers every request in the way that is set."""
    lock = RunLock(run)
    if isinstance(lock.acquire(), Busy):
        raise RuntimeError("the lock of a new run is taken")
    end = threading.Event()
    answer: list[tuple[bool, str]] = []

    def serve() -> None:
        while not end.wait(0.01):
            for request in read_requests(run).asked if answer else ():
                data = {
                    "id": request.id,
                    "ok": answer[0][0],
                    "text": f"{answer[0][1]} {request.verb} {request.args}",
                }
                journal(run, (events.ANSWERED, data))
                remove_request(run, request.id)

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda ok, text: answer.__setitem__(slice(None), [(ok, text)])
    end.set()
    thread.join()
    lock.release()


@pytest.mark.parametrize("verb", ["save", "stop", "restart", "reload"])
def test_a_request_is_answered_with_the_supervisors_words(
    verb: str, supervised: Callable[[bool, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Granted is 0 on stdout, refused is 1 on stderr."""
    supervised(True, "well:")
    assert invoke([verb]) == 0
    assert capsys.readouterr().out == f"well: {verb} {{}}\n"
    supervised(False, "no:")
    assert invoke([verb]) == 1
    assert capsys.readouterr().err == f"outlast: no: {verb} {{}}\n"
    assert invoke([verb, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_pin_names_the_generation(
    run: RunDirectory, supervised: Callable[[bool, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The one given, or else the newest verified one."""
    supervised(True, "ok")
    assert invoke(["pin", "tiny", "step-000000001.a0001"]) == 0
    assert "step-000000001.a0001" in capsys.readouterr().out
    assert invoke(["pin"]) == 64
    status_of(run, verified="step-000000002.a0001")
    assert invoke(["pin", "--remove"]) == 0
    assert "unpin {'generation': 'step-000000002.a0001'}" in capsys.readouterr().out


def test_an_unanswered_request_stands(
    run: RunDirectory, supervised: Callable[[bool, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """2 after the time given, and the supervisor will still find it."""
    assert invoke(["save", "--wait", "0.05"]) == 2
    assert "the request stands" in capsys.readouterr().err
    assert [request.verb for request in read_requests(run).asked] == ["save"]


@pytest.mark.parametrize("verb", ["save", "restart", "reload"])
def test_without_a_supervisor_there_is_nobody_to_ask(
    verb: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 with the cure, and no request is left for a later start to act on."""
    status_of(run, as_of=0.0, host="another")
    assert invoke([verb]) == 1
    assert 'start it with "outlast run"' in capsys.readouterr().err
    assert not read_requests(run).asked


def test_a_supervisor_on_another_host_is_asked_while_its_snapshot_is_fresh(run: RunDirectory) -> None:
    """Nobody here can see its process; its sign of life counts."""
    status_of(run, host="another")
    assert invoke(["save", "--wait", "0"]) == 2
    status_of(run, host="another", as_of=time.time() - 100)
    assert invoke(["save", "--wait", "0"]) == 1


def test_stop_without_a_supervisor_holds_the_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journaled under the lock, which is free again; a second stop says that it is held already."""
    journal(
        run,
        (events.SUPERVISOR_STARTED, {"identity": "x", "version": "0", "job_digest": "j", "code_digest": "c"}),
    )
    status_of(run, as_of=0.0)
    assert invoke(["stop"]) == 0
    assert "held" in capsys.readouterr().out
    held = read_history(run).held
    if held is None:
        raise AssertionError("not held")
    assert (held.job_digest, held.code_digest) == ("j", "c")
    assert held.reason.startswith("stopped by ")
    assert (run.read_status() or {})["held"] == held.reason
    lock = RunLock(run)
    assert not isinstance(lock.acquire(), Busy)
    lock.release()
    assert invoke(["stop"]) == 0
    assert "already held" in capsys.readouterr().out


def test_stop_of_a_done_run_changes_nothing(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """What is complete is not held."""
    journal(run, (events.DONE, {"attempt": 1, "command_digest": "c"}))
    assert invoke(["stop"]) == 0
    assert "already complete" in capsys.readouterr().out
    assert read_history(run).held is None


# -- the small ones ----------------------------------------------------------------------------------------


def test_jobs_schema_and_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped jobs by name, the schema as JSON, a new job that is never written over."""
    assert invoke(["jobs"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["bytelm", "proof24", "toy"]
    assert invoke(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[2]["name"] == "toy"
    assert invoke(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "outlast job file"
    assert invoke(["new", "mine"]) == 0
    assert sorted(os.listdir(folder / "mine")) == ["job.yaml", "train.py"]
    capsys.readouterr()
    assert invoke(["new", "mine"]) == 64
    assert "is there already" in capsys.readouterr().err
