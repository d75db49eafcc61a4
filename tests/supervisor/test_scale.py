"""What grows does not cost more at each use: counted in opens and bytes read, which no busy machine changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.scale import generation, new_run, records

from outlast_jobs import events, verify
from outlast_jobs.generation import INDEX
from outlast_jobs.jobfile import Job, job_from_command
from outlast_jobs.jobfile_model import Keep
from outlast_jobs.journal import LINE_LIMIT, JournalWriter
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import chores
from outlast_supervisor.chores import Desk, prune
from outlast_supervisor.commands.status import status
from outlast_supervisor.daemon.folder import Folder
from outlast_supervisor.ledger import answer_to, journal_end
from outlast_supervisor.logview import attempt_logs, last_lines

HUGE = 10 * 10**9
MIB = 1 << 20
_opened: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_hook)  # it stays for good, and does nothing outside `opens`


@contextmanager
def opens() -> Iterator[list[str]]:
    """Everything that is opened within, by whatever name it is given."""
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """How many bytes this process reads within."""
    found: list[int] = []
    before = _rchar()
    yield found
    found.append(_rchar() - before)


def _rchar() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def kept(tmp_path: Path, count: int) -> tuple[Desk, Job, list[str]]:
    """So many generations that the policy keeps, all looked at once."""
    run, run_id = new_run(tmp_path / f"run-{count}")
    names = [generation(run, run_id, step) for step in range(1, count + 1)]
    desk = Desk(run, run_id, lambda event, data: None)
    desk.remembered = {name: verify.look(run.checkpoints / name, run_id, full=True).stats for name in names}
    base = job_from_command(["true"], None, tmp_path)
    job: Job = msgspec.structs.replace(base, keep=Keep(last=3, every_steps=1))
    assert prune(desk, job, None) == []
    return desk, job, names


def test_retention_opens_as_much_of_many_generations_as_of_few(tmp_path: Path) -> None:
    """After the first look of a life only the newest are opened: the same for 20 and for 80."""
    counts = []
    for count in (20, 80):
        desk, job, _ = kept(tmp_path, count)
        with opens() as found:
            assert prune(desk, job, None) == []
        counts.append(len(found))
    assert counts[0] == counts[1]
    assert 0 < counts[0] < 40


def test_an_index_that_was_touched_is_looked_at_again(tmp_path: Path) -> None:
    """What is known of an old generation holds while its index is the same; else it is looked at again."""
    desk, job, names = kept(tmp_path, 20)
    index = desk.run.checkpoints / names[2] / INDEX
    index.write_bytes(b"{}")
    job = msgspec.structs.replace(job, keep=Keep(last=3, every_steps=18))
    assert names[2] not in prune(desk, job, None), "what is damaged is no generation to delete"
    assert (desk.run.checkpoints / names[2]).is_dir()


def test_the_newest_generations_are_looked_at_each_time(tmp_path: Path) -> None:
    """A file that goes from a newest one makes it worth nothing, and one more of the older ones stays for it."""
    desk, _, names = kept(tmp_path, 10)
    (desk.run.checkpoints / names[-1] / "meta.pt").unlink()
    base = job_from_command(["true"], None, tmp_path)
    dropped = prune(desk, msgspec.structs.replace(base, keep=Keep(last=3)), None)
    assert sorted(dropped) == names[:6]


def test_an_answer_costs_what_is_new_of_the_journal(tmp_path: Path) -> None:
    """Of a journal of many megabytes little more than what was written since the question is read."""
    run, _ = new_run(tmp_path / "run")
    records(run, 15_000)
    assert (whole := sum(path.stat().st_size for path in run.journal.iterdir())) > 3 * MIB
    since = journal_end(run)
    writer = JournalWriter.open(run)
    writer.write([writer.append(events.ANSWERED, {"id": "x", "ok": True, "text": "saved"})])
    writer.close()
    with bytes_read() as found:
        assert answer_to(run, "x", since) == (True, "saved")
    assert found[0] < LINE_LIMIT + MIB / 2 < whole


def test_an_answer_is_found_in_a_file_that_became_shorter(tmp_path: Path) -> None:
    """A failed write that was taken back ends before where the journal ended; what follows it is read all the same."""
    run, _ = new_run(tmp_path / "run")
    records(run, 9000)
    [path] = run.journal.iterdir()
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"x" * 5000)
    since = journal_end(run)
    os.truncate(path, size)
    last = path.read_bytes().splitlines()[-1]
    line = msgspec.json.decode(last)
    line |= {"seq": line["seq"] + 1, "event": events.ANSWERED, "data": {"id": "x", "ok": False, "text": "no"}}
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    assert answer_to(run, "x", since) == (False, "no")


def huge_log(run: RunDirectory) -> Path:
    """A log of 10 GB whose middle is a hole."""
    run.logs.mkdir(exist_ok=True)
    path = run.attempt_log(1)
    with open(path, "wb") as file:
        file.write(b"--- outlast: attempt 1\n")
        file.seek(HUGE)
        file.write(b"a line\n" * 50_000)
    return path


def test_status_reads_neither_log_nor_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With 10 GB of log and a long journal `outlast status` opens neither, and reads a few kilobytes."""
    run, _ = new_run(tmp_path / "run")
    records(run, 3000)
    huge_log(run)
    run.write_status({"as_of": 1e9, "state": "finished", "name": "x", "done": True, "step": 7})

    def shown() -> None:
        status.main([str(run.path)], standalone_mode=False)

    shown()  # what it imports is not what it reads
    with bytes_read() as read, opens() as opened:
        shown()
    assert read[0] < 64 * 1024
    assert not [path for path in opened if "journal" in path or path.endswith(".log")]
    assert "done" in capsys.readouterr().out


def test_the_end_of_a_huge_log_is_read_from_its_end(tmp_path: Path) -> None:
    """The last lines of 10 GB, and the tail that an ended attempt is judged by, cost some blocks."""
    run, _ = new_run(tmp_path / "run")
    path = huge_log(run)
    with bytes_read() as read:
        at = last_lines(attempt_logs(run.logs), 1000)
        assert chores.log_tail(path).endswith("a line\n")
    assert at is not None
    assert at.offset == path.stat().st_size - 1000 * len("a line\n")
    assert read[0] < MIB


def test_a_daemon_reads_a_job_file_once(tmp_path: Path) -> None:
    """A second look at a folder of many job files opens none of them."""
    for number in range(40):
        (tmp_path / f"job-{number:02d}.yaml").write_text(f"name: job-{number:02d}\ncommand: ['true']\n")
        os.utime(tmp_path / f"job-{number:02d}.yaml", (1e9, 1e9))
    folder = Folder(tmp_path, lambda: True)
    while len(folder.look().snapshot.entries) < 40:
        pass
    with opens() as found:
        assert len(folder.look().snapshot.entries) == 40
    assert not [path for path in found if path.endswith(".yaml")]
