"""The command line: what each command takes, on which stream it answers, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.supervisor.cli.records import status_of

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import _COMMANDS, invoke
from outlast_supervisor.options import RunOptions

JOB = "name: tiny\ncommand: [sleep, '1']\n"


def test_every_command_has_help_that_ends_with_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` of each command and of the whole exits 0; the last lines are exit codes."""
    for arguments in ([], *([name] for name in _COMMANDS)):
        assert invoke([*arguments, "--help"]) == 0
        out = capsys.readouterr().out
        codes = out.split("Exit codes:\n" if arguments else "Exit codes of outlast run:\n", 1)
        assert len(codes) == 2
        assert all(line.split()[0].isdigit() for line in codes[1].strip().splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats"], 'outlast: no command "stats"; did you mean "status"?; see "outlast --help"'),
        (["run"], 'outlast: name a job, or a command after --; see "outlast run --help"'),
        (["run", "--"], 'outlast: name a job, or a command after --; see "outlast run --help"'),
        (
            ["run", "--nope", "x"],
            'outlast: no option "--nope"; a command and words for it stand after --; see',
        ),
        (["run", "toy", "--relase"], 'did you mean "--release"?'),
        (["new"], "outlast: Missing argument 'NAME'; see \"outlast new --help\""),
        (["run", "toy", "--steps", "5"], "a command and words for it stand after --"),
        (["run", "python", "train.py"], "(train.py); a command and words for it stand after --"),
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


def test_no_command_at_all_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The help, where a script's caller does not take it for an answer, and 64."""
    assert invoke([]) == 64
    seen = capsys.readouterr()
    assert seen.err.startswith("Usage: outlast")
    assert seen.out == ""


def test_what_the_system_refuses_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing can be made, on what and why, and no traceback."""
    monkeypatch.chdir("/proc")
    assert invoke(["new", "rings"]) == 64
    said = capsys.readouterr().err
    assert said.startswith('outlast: cannot use "rings": No such file or directory; ')
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("./folder", 'there is no file "'),
        ("./missing", 'there is no file "'),
        ("./plain", "it is not executable; chmod +x it, or put"),
        ("no-such-program", "it is not in PATH"),
    ],
)
def test_a_program_that_cannot_be_executed_is_told_before_any_attempt(
    program: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """64 with what is wrong with it, and no run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("exit 0\n")
    assert invoke(["run", "--", program]) == 64
    assert f'cannot execute "{program}" of job "' in (said := capsys.readouterr().err)
    assert why in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["status"], ["run", "toy"], ["logs"], ["verify"], ["doctor", "toy"]])
def test_a_current_folder_that_is_gone_is_told(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 and one line, whatever would have looked there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert invoke(words) == 64
    assert "outlast: the current folder is gone; change to one that is there\n" in capsys.readouterr().err


def test_a_slip_in_the_generation_to_go_on_from_begins_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64, with where it was looked for; there is no run afterwards, and none that looks unusable."""
    (tmp_path / "job.yaml").write_text(JOB)
    assert invoke(["run", str(tmp_path), "--from", "step-000000001.a0009"]) == 64
    assert 'there is no such generation, here or in "' in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_wrong_job_file_is_64_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job file's own error, unchanged."""
    (folder / "job.yaml").write_text("name: x\ncommand: [a]\nsave: {evry_steps: 5}\n")
    assert invoke(["run", "job.yaml"]) == 64
    assert "job.yaml:3: save.evry_steps: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["run"], ["slurm"], ["doctor"]])
def test_a_name_that_the_locale_has_no_letters_for_is_told(folder: Path, words: list[str]) -> None:
    """No traceback: which letters, which encoding, and what to set."""
    (folder / "odd.yaml").write_text('{name: "größe", command: ["true"]}', encoding="utf-8")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "outlast_supervisor.cli", *words, "odd.yaml"]
    done = subprocess.run(line, capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1), done.stderr
    assert all(part in done.stderr for part in ("encoding is ascii", "LC_ALL=C.UTF-8"))


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
