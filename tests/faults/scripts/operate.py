"""Carries out one operation of the product on a run directory, between marks, and says what is done: OPERATION RUN.

All is done by the product's own functions, as the supervisor and the worker call them, in one thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.faults import marks

from outlast_jobs import durable, verify
from outlast_jobs.claim import claim, newest_claim
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.hardlink import Stamp
from outlast_jobs.history import read_history
from outlast_jobs.jobfile import Job, job_from_command
from outlast_jobs.jobfile_model import Keep
from outlast_jobs.journal import JournalWriter
from outlast_jobs.locks import Busy, RunLock
from outlast_jobs.requests import read_requests, write_request
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sealer import Sealer
from outlast_jobs.sidecar import publish
from outlast_supervisor import events as ev
from outlast_supervisor.actions import Choose
from outlast_supervisor.choosing import choose
from outlast_supervisor.chores import Desk, answer, prune, set_aside
from outlast_supervisor.startup import write_job

JOB: Job = msgspec.structs.replace(job_from_command(["true"], None, Path("/")), keep=Keep(last=1))
SINGLE = "mine/ckpt.pt"  # where no supervisor clears up
TRIES = 5
AGAIN = "again"
"""Said of what is to be tried once more, and is not done."""


def done(*words: object) -> None:
    """Acknowledge: what is said here must be on disk, whatever comes next."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Writer:
    """The journal of a new life; each record is on disk when it returns."""

    def __init__(self, run: RunDirectory) -> None:
        self.journal = JournalWriter.open(run, "here")

    def record(self, event: str, data: dict[str, Any]) -> None:
        self.journal.write([self.journal.append(event, data)])


def desk_of(run: RunDirectory, run_id: str) -> Desk:
    """What a supervisor works with that has claimed the run, and remembers all that is whole."""
    desk = Desk(run, run_id, Writer(run).record, pinned=set(read_history(run).pins))
    desk.claimed = desk.claiming = newest_claim(run.checkpoints)
    for path in verify.scan(run.checkpoints):
        finding = verify.look(path, run_id, full=True)
        if finding.verdict is verify.Verdict.VERIFIED:
            desk.remembered[path.name] = finding.stats
    return desk


def save(run: RunDirectory, run_id: str) -> None:
    """A generation of two files is sealed by the newest attempt."""
    attempt = newest_claim(run.checkpoints)
    marks.begin()
    done("sealed", seal(run, run_id, attempt, 500))
    marks.end()


def seal(run: RunDirectory, run_id: str, attempt: int, step: int) -> str:
    """As the worker does it."""
    sealer = Sealer(run.checkpoints, attempt, GenerationName(step, attempt))
    sealer.begin()
    sealer.add("model.shard-000.pt", [b"s" * 5000, b"t" * 5000])
    sealer.add("meta.pt", b"m" * 1000)
    return sealer.seal(Index(run_id=run_id, attempt=attempt, step=step, healthy=True)).name


def linking(run: RunDirectory, run_id: str) -> None:
    """The same, one file of which is linked from the generation before the newest."""
    attempt = newest_claim(run.checkpoints)
    source = verify.scan(run.checkpoints)[1]
    shard = "model.shard-000.pt"
    index = verify.look(source, run_id, full=True).index
    if index is None:
        raise ValueError(f"there is no index in {str(source)!r}")
    entry, stamp = index.files[shard], Stamp.of(os.stat(source / shard))
    marks.begin()
    sealer = Sealer(run.checkpoints, attempt, GenerationName(500, attempt))
    sealer.begin()
    sealer.link(shard, source, entry, stamp)
    sealer.add("meta.pt", b"m" * 1000)
    done("sealed", sealer.seal(Index(run_id=run_id, attempt=attempt, step=500, healthy=True)).name)
    marks.end()


def claiming(run: RunDirectory, run_id: str) -> None:
    """The next attempt claims the checkpoints, and takes away what the one before was writing."""
    attempt = newest_claim(run.checkpoints) + 1
    marks.begin()
    claim(run.checkpoints, attempt)
    done("claimed", attempt)
    marks.end()


def pruning(run: RunDirectory, run_id: str) -> None:
    """All but the newest generation are dropped."""
    desk = desk_of(run, run_id)
    marks.begin()
    for name in prune(desk, JOB, None):
        done("dropped", name)
    marks.end()


def quarantine(run: RunDirectory, run_id: str) -> None:
    """What is called as a generation and is not whole is set aside."""
    desk = desk_of(run, run_id)
    bad = [path.name for path in verify.scan(run.checkpoints) if path.name not in desk.remembered]
    marks.begin()
    for name in bad:
        set_aside(desk, name, "it was found damaged")
        done("aside", name)
    marks.end()


def journal(run: RunDirectory, run_id: str) -> None:
    """A life begins its journal and adds to it."""
    marks.begin()
    writer = Writer(run)
    for number in range(1, 4):
        writer.record("test", {"number": number})
        done("recorded", writer.journal.life, number)
    marks.end()


def journal_again(run: RunDirectory, run_id: str) -> None:
    """A life adds to its journal, and does again what failed, as the supervisor does it."""
    writer = Writer(run).journal
    marks.begin()
    for number in range(1, 4):
        line = writer.append("test", {"number": number})
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                writer.write([line])
                done("recorded", writer.life, number)
                break
    marks.end()


def status(run: RunDirectory, run_id: str) -> None:
    """The snapshot is renewed."""
    marks.begin()
    for number in (2, 3):
        run.write_status({"number": number})
        done("status", number)
    marks.end()


def start(run: RunDirectory, run_id: str) -> None:
    """A start: the lock, the folders, what was left behind, the choice, the claim, the job as resolved."""
    lock = RunLock(run)
    marks.begin()
    if isinstance(lock.acquire(), Busy):
        raise RuntimeError("the lock of a dead supervisor is held")
    created = run.create().run.run_id
    desk = Desk(run, created, Writer(run).record)
    run.sweep()
    found = choose(desk, JOB, Choose(run.highest_attempt() + 1, "newest", False), None)
    if isinstance(found, ev.Chosen):
        done("chosen", found.name, found.attempt)
    elif isinstance(found, ev.ChooseFailed):
        done(AGAIN, found.reason)
    write_job(run, JOB)
    marks.end()


def request(run: RunDirectory, run_id: str) -> None:
    """Something is asked of the run, and answered."""
    desk = desk_of(run, run_id)
    marks.begin()
    done("asked", write_request(run, "save", {}, "me"))
    for asked in read_requests(run):
        answer(desk, asked.id, True, "done")
        done("answered", asked.id)
    marks.end()


def single(run: RunDirectory, run_id: str) -> None:
    """A checkpoint in one file is replaced."""
    marks.begin()
    for number in (2, 3):
        publish(run.path / SINGLE, str(number).encode() * 9000)
        done("published", number)
    marks.end()


def emptying(run: RunDirectory, run_id: str) -> None:
    """What an earlier deletion left is swept."""
    durable.discard(verify.scan(run.checkpoints)[-1], run.checkpoints)
    marks.begin()
    run.sweep()
    done("swept")
    marks.end()


OPERATIONS = {
    "save": save,
    "linked save": linking,
    "claim": claiming,
    "prune": pruning,
    "quarantine": quarantine,
    "journal append": journal,
    "journal append again": journal_again,
    "status write": status,
    "start": start,
    "request": request,
    "single file": single,
    "sweep": emptying,
}

if __name__ == "__main__":
    directory = RunDirectory(Path(sys.argv[2]))
    OPERATIONS[sys.argv[1]](directory, sys.argv[3])
