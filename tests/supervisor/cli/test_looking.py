"""Commands that look: status, logs and verify say what is there, and change nothing unless told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.supervisor.cli.records import journal, status_of
from tests.waiting import wait_until

from outlast_jobs import events
from outlast_jobs.history import read_history
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.locks import RunLock
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import invoke

JOB = "name: tiny\ncommand: [sleep, '1']\n"


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
        wait_until(lambda: lines, 60, "the first table")
        status_of(run, step=4711)
        wait_until(lambda: any("4711" in text for text in lines), 60, "the changed step")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        reader.join()


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
        wait_until(lambda: lines, 60, "the first line")
        run.attempt_log(2).write_bytes(b"two\n")
        wait_until(lambda: len(lines) == 2, 60, "the second attempt")
        run.attempt_log(2).open("ab").write(b"last\n")
        status_of(run, done=True)
        assert process.wait(60) == 0
        reader.join()
    assert lines == ["one\n", "two\n", "last\n"]


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
    assert "missing" in read_history(run).quarantined["step-000000500.a0001"]


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
