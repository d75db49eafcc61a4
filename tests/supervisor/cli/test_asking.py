"""Commands that ask a supervisor: it answers in its own words, and without one it is said what holds."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.supervisor.cli.records import journal, status_of

from outlast_jobs import events
from outlast_jobs.history import read_history
from outlast_jobs.locks import Busy, RunLock
from outlast_jobs.requests import read_requests, remove_request
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands import invoke


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
            for request in read_requests(run) if answer else ():
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
    assert invoke(["pin"]) == 0
    assert "pin {'generation': 'step-000000002.a0001'}" in capsys.readouterr().out


def test_a_pin_is_taken_away_where_it_is(
    run: RunDirectory, supervised: Callable[[bool, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name the one that is pinned, and never the newest verified one; of several one has to be named."""
    supervised(True, "ok")
    status_of(run, verified="step-000000009.a0001")
    assert invoke(["pin", "--remove"]) == 64
    assert "pinned in " in capsys.readouterr().err
    journal(run, (events.PINNED, {"generation": "step-000000001.a0001"}))
    assert invoke(["pin", "--remove"]) == 0
    assert "unpin {'generation': 'step-000000001.a0001'}" in capsys.readouterr().out
    journal(run, (events.PINNED, {"generation": "step-000000002.a0001"}))
    assert invoke(["pin", "--remove"]) == 64
    assert "step-000000001.a0001, step-000000002.a0001" in capsys.readouterr().err


def test_an_unanswered_request_stands(
    run: RunDirectory, supervised: Callable[[bool, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """2 after the time given, and the supervisor will still find it."""
    assert invoke(["save", "--wait", "0.05"]) == 2
    assert "the request stands" in capsys.readouterr().err
    assert [request.verb for request in read_requests(run)] == ["save"]


@pytest.mark.parametrize("verb", ["save", "restart", "reload"])
def test_without_a_supervisor_there_is_nobody_to_ask(
    verb: str, run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 with the cure, and no request is left for a later start to act on."""
    status_of(run, as_of=0.0, host="another")
    assert invoke([verb]) == 1
    assert 'start it with "outlast run"' in capsys.readouterr().err
    assert not read_requests(run)


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


def test_release_lifts_a_hold_and_starts_nothing(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a login node nobody wants the training to start; whoever has the run, or no hold, is told."""
    journal(run, (events.SUPERVISOR_STARTED, {"identity": "x", "version": "0"}))
    status_of(run, as_of=0.0, unjournaled=True, warnings=["the journal cannot be written"])
    assert invoke(["stop"]) == 0
    assert invoke(["status"]) == 0
    assert "journal" not in capsys.readouterr().out, "it has just been written"
    assert invoke(["release"]) == 0
    assert capsys.readouterr().out.startswith("released; the next start goes on")
    assert read_history(run).held is None
    status = run.read_status() or {}
    assert (status["state"], status["held"]) == ("finished", None)
    assert invoke(["release"]) == 0
    assert capsys.readouterr().out == "the run is not held\n"
    lock = RunLock(run)
    assert not isinstance(lock.acquire(), Busy)
    assert invoke(["release"]) == 1
    assert "not released" in capsys.readouterr().err
    lock.release()


def test_pin_without_a_supervisor_is_there_for_the_next(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journaled under the lock, which is free again; one that does not exist is refused and leaves nothing."""
    name = "step-000000001.a0001"
    status_of(run, as_of=0.0, verified=name)
    assert invoke(["pin"]) == 1
    assert f'there is no generation "{name}"' in capsys.readouterr().err
    assert not read_history(run).pins
    (run.checkpoints / name).mkdir(parents=True)
    assert invoke(["pin"]) == 0
    assert capsys.readouterr().out == f"pinned {name}: it is kept until it is unpinned\n"
    assert read_history(run).pins == {name}
    lock = RunLock(run)
    assert not isinstance(lock.acquire(), Busy)
    assert invoke(["pin", "tiny", name, "--remove", "--wait", "0"]) == 2  # asked: somebody has the run by now
    lock.release()
    assert invoke(["pin", "tiny", name, "--remove"]) == 0
    assert not read_history(run).pins
    assert not isinstance(lock.acquire(), Busy)
    lock.release()


def test_a_folder_with_a_job_means_that_jobs_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for `outlast run FOLDER`: another run beside it is not asked in its place; else the run that is there."""
    home = folder / "rings"
    home.mkdir()
    (home / "job.yaml").write_text("name: rings\ncommand: [sleep, '1']\n")
    moons, rings = (RunDirectory(home / "runs" / name) for name in ("moons", "rings"))
    moons.create()
    assert invoke(["stop", "rings"]) == 64
    assert 'the job "rings" has not been run yet' in capsys.readouterr().err
    rings.create()
    assert invoke(["stop", "rings"]) == 0
    assert read_history(rings).held is not None
    assert read_history(moons).held is None
    assert invoke(["stop", "rings/runs"]) == 64  # no job there, and two runs
    (home / "job.yaml").write_text("name: [\n")  # somebody is at it
    assert invoke(["stop", "rings"]) == 64
    assert "2 runs are meant" in capsys.readouterr().err


def test_stop_of_a_done_run_changes_nothing(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """What is complete is not held."""
    journal(run, (events.DONE, {"attempt": 1, "command_digest": "c"}))
    assert invoke(["stop"]) == 0
    assert "already complete" in capsys.readouterr().out
    assert read_history(run).held is None


def test_who_cannot_ask_for_a_stop_is_told_how_to_end_the_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run directory that takes no request, as on a full disk, leaves the signal to its process."""
    status_of(run)
    lock = RunLock(run)
    assert not isinstance(lock.acquire(), Busy)
    run.requests.rmdir()
    run.requests.write_text("no folder")
    assert invoke(["stop"]) == 73
    assert f"make room or give access, or have process {os.getpid()} on " in capsys.readouterr().err
    assert invoke(["save"]) == 73
    assert capsys.readouterr().err.endswith("make room or give access\n")
    lock.release()
