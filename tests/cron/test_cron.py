"""Jobs under the real cron: it starts them over and over, loses them and the machine, and they come to their end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cron.machine import Machine
from tests.e2e.conftest import MakeRun
from tests.e2e.harness import PATIENCE, Run, children
from tests.e2e.reference import Reference, toy
from tests.realparts import needs
from tests.waiting import wait_until

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_supervisor.schedulers.cron import command_line

pytestmark = needs("cron", "faketime", "namespaces")

FAST = 200  # minutes in one, and so a start each third of a second
WAITS = {"command": ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"], "signals": "native"}
ODD = "a  b%c é'\\d"


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Run]:
    """A run whose folder has a name that shells and cron take apart."""
    run = Run(tmp_path / ODD, {"command": ["true"]})
    yield run
    run.close()


def install(machine: Machine, run: Run, *arguments: str, watched: bool = True) -> None:
    """Install the job's lines, below a line of the user's that has the exit code of each start written down."""
    if watched:
        machine.set_crontab(f"SHELL={machine.shell}\n".encode())
    done = machine.cron(run.job_file, "--install", *arguments)
    assert done.code == 0, done.err


def more_starts(machine: Machine, run: Run, number: int) -> list[int]:
    """Wait for the end of so many further starts, and give their exit codes."""
    before = len(machine.ends())
    run.until(lambda: len(machine.ends()) >= before + number, f"{number} starts")
    return machine.ends()[before:]


def files(run: Run) -> dict[str, tuple[int, int]]:
    """Everything in the run directory but the lock, which each start takes for a moment."""
    found = [path for path in run.directory.path.rglob("*") if path != run.directory.lock]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_of_thirty_starts_one_runs_and_a_done_job_stays_done(machine: Machine, make_run: MakeRun) -> None:
    """Of thirty starts over one another the first runs and the others change nothing; none does once it is done."""
    run = make_run(WAITS)
    install(machine, run, "--every", "1m")
    machine.boot(FAST)
    run.until(lambda: run.attempts() == [1], "the first start's worker")
    assert set(more_starts(machine, run, 30)) == {ExitCode.BUSY}
    assert run.attempts() == [1]
    assert len(run.records(journal.SUPERVISOR_STARTED)) == 1
    (run.folder / "go").touch()
    run.until(lambda: 0 in machine.ends(), "the end of the run")
    before = files(run)
    assert set(more_starts(machine, run, 5)) <= {ExitCode.DONE, ExitCode.BUSY}  # one that was under way
    assert set(more_starts(machine, run, 2)) == {ExitCode.DONE}
    machine.cut_power()
    assert files(run) == before
    assert machine.mails() == []


def test_a_chain_of_kills_and_a_reboot_is_the_undisturbed_run(
    machine: Machine, make_run: MakeRun, reference: Reference
) -> None:
    """Worker killed, supervisor killed, power cut: cron carries the job on to the same state by the same steps."""
    # slow, so that each kill comes in time
    run = make_run(toy("--step-seconds", 0.015, save={"every_steps": 20}))
    install(machine, run, "--every", "1m", watched=False)
    machine.boot(30)

    def attached(attempt: int) -> bool:
        return any(r.data["attempt"] == attempt for r in run.records(journal.ATTEMPT_ATTACHED))

    def supervisor() -> int | None:
        return next((pid for pid in machine.processes() if children(pid)), None)

    run.until(lambda: attached(1) and len(run.generations()) >= 2, "generations of attempt 1")
    for pid in children(run.until(supervisor, "a supervisor")):
        os.kill(pid, signal.SIGKILL)
    run.until_step(1, attempt=2)
    os.kill(run.until(supervisor, "a supervisor"), signal.SIGKILL)
    run.until_step(1, attempt=3)
    machine.cut_power()
    run.until(lambda: not run.of_attempts(), "the end of everything")
    machine.boot(30)
    run.until(lambda: run.records(journal.DONE), "the end", 120)
    run.until(lambda: not machine.processes(), "the end of the supervisor")
    reference.hold_end(run)
    assert run.attempts() == [1, 2, 3, 4]
    assert len({record.boot for record in run.records()}) == 2
    shown = run.cli("logs", str(run.directory.path)).out
    heads = [line for line in shown.splitlines() if line.startswith("--- outlast: attempt ")]
    assert [head.split()[3] for head in heads] == ["1", "2", "3", "4"]
    assert machine.mails() == []


def test_a_reboot_alone_starts_the_job(machine: Machine, make_run: MakeRun) -> None:
    """At each boot, long before the next of its minutes, cron starts the job."""
    run = make_run(WAITS)
    install(machine, run, "--every", "24h", watched=False)
    for attempt in (1, 2):
        machine.boot()
        run.until(lambda attempt=attempt: run.attempts() == list(range(1, attempt + 1)), "a worker")
        run.until_status(lambda status: status.get("worker"), "the worker")
        machine.cut_power()
        run.until(lambda: not run.of_attempts(), "the end of everything")
    assert machine.mails() == []


def test_a_job_that_is_given_up_is_mailed_once(machine: Machine, odd: Run) -> None:
    """Given up, a job in a folder with an odd name has one mail sent, with the reason and the log, and no further."""
    tools = odd.folder / "tools 100%"
    tools.mkdir()
    (tools / "trainer").write_text('#!/bin/sh\necho "seen by $0"\nexit 3\n')
    (tools / "trainer").chmod(0o755)
    odd.write_job({"command": ["trainer"], "signals": "native", "restart": {"never_on": [3]}})
    machine.path = f"{tools}:{machine.path}"
    install(machine, odd, "--every", "1m")
    machine.boot(FAST)
    odd.until(lambda: odd.records(journal.GAVE_UP), "giving up")
    odd.until(machine.mails, "a mail")
    assert set(more_starts(machine, odd, 5)) <= {ExitCode.HELD, ExitCode.BUSY}
    machine.cut_power()
    (mail,) = machine.mails()
    assert "given up" in mail
    assert f"seen by {tools}/trainer" in mail
    assert odd.attempts() == [1]


def test_errors_go_to_the_log_in_place_of_mail(machine: Machine, odd: Run) -> None:
    """With --log what is said of a job is appended to that file, and nothing is mailed."""
    odd.write_job({"command": ["false"], "signals": "native", "restart": {"never_on": [1]}})
    log = odd.folder / "said %"
    install(machine, odd, "--every", "1m", "--log", str(log))
    machine.boot(FAST)
    odd.until(lambda: log.exists() and "given up" in log.read_text(), "the word")
    more_starts(machine, odd, 3)
    machine.cut_power()
    assert log.read_text().count("given up") == 1
    assert machine.mails() == []


WORDS = [
    "plain",
    "two words",
    "100%",
    "%%",
    "\\%",
    "\\\\",
    "a\\\\%b\\",
    "'",
    '"$HOME`id`"',
    "é ☃",
    "",
    "*",
    "#",
    "!",
    "~",
]


def test_every_word_reaches_the_program(machine: Machine, tmp_path: Path) -> None:
    """Words with all that shells and cron give a meaning come to the program as they were, and so does PATH."""
    shown = tmp_path / "shown"
    script = tmp_path / "show.py"
    script.write_text(
        "import os, sys\n"
        f"with open({str(shown)!r} + '.tmp', 'wb') as file:\n"
        "    file.write(b'\\0'.join(os.fsencode(w) for w in [*sys.argv[1:], os.environ['PATH'], os.getcwd()]))\n"
        f"os.rename({str(shown)!r} + '.tmp', {str(shown)!r})\n"
    )
    path = "/o'd %d:/b\\%in"
    machine.set_crontab(
        f"@reboot {command_line([sys.executable, str(script), *WORDS], path=path)}\n".encode()
    )
    machine.boot()
    wait_until(shown.exists, PATIENCE, "the program")
    assert shown.read_bytes().decode().split("\0") == [*WORDS, path, "/root"]
