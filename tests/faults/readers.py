"""Every reader of files and messages that somebody else may have written, each with a valid sample of its own."""

from __future__ import annotations

import hashlib
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.cells import FRESH, NOW, POLICIES, live

from outlast_jobs import metrics, safejson
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName, Index, decode_index, digest_line, encode_index
from outlast_jobs.history import read_history
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.jobfile import Job, JobFileError, job_from_resolved, job_to_yaml, load_job
from outlast_jobs.journal import JournalWriter, read_journal
from outlast_jobs.lease import Holder, read_lease
from outlast_jobs.locks import Busy, RunLock, read_holder
from outlast_jobs.look import look, stats_of
from outlast_jobs.requests import read_requests, write_request
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import look_file, publish, read_checked
from outlast_jobs.verify import newest_usable
from outlast_supervisor import chores, views
from outlast_supervisor.intake import Intake, Trainers
from outlast_supervisor.notify import _CREDENTIALS, _parse
from outlast_supervisor.policy import Context
from outlast_supervisor.reporting.gather import gather
from outlast_supervisor.reporting.page import page
from outlast_supervisor.states import Ledger, Running, State
from outlast_supervisor.table import decide

NAME = GenerationName(100, 1)
JOB = b"""name: rings
command: ["{python}", train.py, --steps, "1000"]
workdir: .
env: {OMP_NUM_THREADS: "1", TOKEN: x}
signals: {mode: outlast, save: USR1}
save: {every_steps: 200, every_seconds: 10m}
keep: {last: 3, every_steps: 1000, max_bytes: 20GiB}
restart: {without_progress: 5, backoff: 1s..60s, never_on: [2], free_on: [137]}
stop: {grace: 30s, on_usr1: auto, time_limit: 7d}
hooks: {done: "true"}
slurm: {time: "04:00:00", warn: 120s, options: {partition: gpu}}
"""
MESSAGE = (
    b"READY=1\nX_OUTLAST_PROTOCOL=1\nX_OUTLAST_RANK=0\nX_OUTLAST_RESTORED=step-000000100.a0001\nX_OUTLAST_STEP=100\n"
    b"X_OUTLAST_TOTAL=1000\nX_OUTLAST_LOSS=0.25\nX_OUTLAST_PHASE=train\nX_OUTLAST_SAVING=77\n"
    b"X_OUTLAST_SEALED=step-000000200.a0002\nX_OUTLAST_BYTES=77\nX_OUTLAST_SECONDS=0.5\nX_OUTLAST_SAVE_FAILED=ENOSPC\n"
    b"X_OUTLAST_SICK=7\nX_OUTLAST_EXIT=saved\n"
    b'X_OUTLAST_FAILURE={"exception":"ValueError","message":"x","where":"a.py:1","step":7,"phase":"train"}\n'
    b'X_OUTLAST_BAD={"generation":"step-000000100.a0001","file":"meta.pt","reason":"sha256"}\n'
    b'X_OUTLAST_REFUSED=no\nX_OUTLAST_DRIFT=["threads 1 -> 2"]\nSTATUS=fine'
)
METRICS = b"""{"schema":"outlast.metrics/1","attempt":2,"restored_step":100,"restored":"step-000000100.a0001"}
{"step":101,"loss":0.5,"lr":[0.1],"t":1700000000.5,"epoch":0,"batch":1,"rng":{"torch":"00ff"},"ids":"aa"}
{"step":102,"loss":"nan","lr":[0.1],"t":1700000001.5,"epoch":0,"batch":2,"rng":{"torch":"00fe"},"ids":"ab"}
"""
STATUS = {
    "as_of": 1.0, "name": "x", "state": "running", "phase": "train", "counters": {"crashed": 1}, "step": 1, "total": 9,
    "loss": 0.5, "rate": 1.5, "eta": 5.5, "deadline": 9.5, "steps_at_risk": 1, "seconds_at_risk": 1.5, "attempt": 2,
    "last_save": {"at": 1.0, "seconds": 0.5, "step": 1}, "cadence": {"seconds": 9.5}, "standby": {"uss": 77},
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """``read`` reads what lies at ``path``; only ``named`` errors may come out of it."""

    path: Path
    sample: bytes
    read: Callable[[], Any]
    named: tuple[type[BaseException], ...] = ()


def make(folder: Path) -> dict[str, Reader]:
    """A run with one of everything, and all that reads it."""
    run = RunDirectory(folder / "run")
    run_id = run.create().run.run_id
    generation = run.checkpoints / str(NAME)
    generation.mkdir()
    (generation / "meta.pt").write_bytes(b"meta")
    data = encode_index(
        Index(run_id=run_id, attempt=1, step=100, healthy=True, files={"meta.pt": _entry(b"meta")})
    )
    (generation / "index.json").write_bytes(data)
    (generation / "index.json.sha256").write_bytes(digest_line(data))
    stats_of(generation, decode_index(data))
    _journal(run)
    for attempt in (1, 2):
        run.attempt_metrics(attempt).write_bytes(METRICS.replace(b'"attempt":2', b'"attempt":%d' % attempt))
        run.attempt_log(attempt).write_text('x\nTraceback:\n  File "a.py", line 1, in f\nValueError: x\n')
    run.write_status(STATUS)
    request = write_request(run, "pin", {"generation": str(NAME)}, "ann@here")
    lock = RunLock(run)
    lock.acquire()
    signed = run.lock.read_bytes()
    lock.release()
    lease = run.path / "lease-000001"
    lease.write_bytes(signed)
    single = run.path / "ckpt.pt"
    publish(single, b"content")
    desk = chores.Desk(run, run_id, lambda event, data: None)
    job = folder / "job.yaml"
    job.write_bytes(JOB)
    resolved = job_to_yaml(load_job(job)).encode()

    def generations() -> list[Any]:
        found = look(generation, run_id, full=True)
        return [
            found,
            newest_usable(run.checkpoints, run_id, {}),
            chores.examine(desk, 1),
            chores.look(desk, 1),
        ]

    def index_of_any_digest() -> list[Any]:
        """As somebody writes it who can also write the digest."""
        digest = generation / "index.json.sha256"
        digest.write_bytes(digest_line((generation / "index.json").read_bytes()))
        return generations()

    def report() -> str:
        return page(gather(run, 2e9))

    def history() -> list[Any]:
        found = read_history(run)
        return [read_journal(run), found, chores.taken_over(desk), report()]

    def lines() -> list[Any]:
        older = metrics.replayed(run, 2)
        newer = metrics.read_metrics(run.attempt_metrics(2)).lines
        return [
            [*metrics.history(run)],
            metrics.compare_replay(older.values(), newer).text,
            chores.furthest_step(desk, 9),
            chores.look(desk, 2),
            chores.examine(desk, 2),
            chores.audit(desk, 2),
            report(),
        ]

    def status() -> list[Any]:
        found = run.read_status()
        seen = views.row(str(run.path), found, views.Facts(2.0))
        return [found, seen, views.plain([seen], detailed=True), report()]

    def holders() -> list[Any]:
        known = read_holder(run)
        leased = read_lease(run.path)
        said = [
            Busy("x", who).text for who in (known, leased[0] if leased else None) if isinstance(who, Holder)
        ]
        alive = [who.alive() for who in (known,) if who is not None]
        return [said, alive]

    files = {
        "job file": Reader(job, JOB, lambda: load_job(job), (JobFileError,)),
        "resolved job": Reader(
            run.job_yaml, resolved, lambda: _resolved(run.job_yaml), (JobFileError, OSError, IntegrityError)
        ),
        "run.json": Reader(run.run_json, run.run_json.read_bytes(), run.read_run, (IntegrityError, OSError)),
        "index": Reader(generation / "index.json", data, generations),
        "index with its digest": Reader(generation / "index.json", data, index_of_any_digest, (OSError,)),
        "index digest": Reader(generation / "index.json.sha256", digest_line(data), generations),
        "generation's file": Reader(generation / "meta.pt", b"meta", generations),
        "journal": Reader(run.journal / "0001-x.jsonl", (run.journal / "0001-x.jsonl").read_bytes(), history),
        "metrics": Reader(run.attempt_metrics(2), run.attempt_metrics(2).read_bytes(), lines, (OSError,)),
        "log": Reader(run.attempt_log(2), run.attempt_log(2).read_bytes(), lambda: chores.examine(desk, 2)),
        "status": Reader(run.status_json, run.status_json.read_bytes(), status),
        "request": Reader(
            run.requests / f"{request}.json",
            (run.requests / f"{request}.json").read_bytes(),
            lambda: read_requests(run),
        ),
        "lock": Reader(run.lock, signed, holders),
        "lease": Reader(lease, signed, holders, (OSError,)),
        "single file": Reader(single, b"content", lambda: [look_file(single), _checked(single)]),
        "its digest": Reader(
            single.with_name("ckpt.pt.sha256"),
            single.with_name("ckpt.pt.sha256").read_bytes(),
            lambda: [look_file(single), _checked(single)],
        ),
        "any JSON": Reader(folder / "x", data, lambda: _json(folder / "x"), (IntegrityError,)),
    }
    message = folder / "message"
    files["notification"] = Reader(message, MESSAGE, lambda: _heard(message.read_bytes()))
    for reader in files.values():
        reader.path.write_bytes(reader.sample)
    return files


def _entry(data: bytes) -> Any:
    from outlast_jobs.generation import FileEntry

    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def _journal(run: RunDirectory) -> None:
    writer = JournalWriter.open(run, "x")
    generation = {"generation": str(NAME), "step": 100, "bytes": 4, "seconds": 0.5, "healthy": True}
    for event, data in (
        ("supervisor_started", {"identity": str(ProcessIdentity.current()), "version": "1", "job_digest": "aa"}),
        ("attempt_started", {"attempt": 1, "resume": None, "step": 0, "cause": "start", "host": "x"}),
        ("attempt_attached", {"attempt": 1, "pid": 1, "rank": 0, "restored": None}),
        ("sealed", generation),
        ("verified", {**generation, "stats": {"meta.pt": [1, 2, 3]}}),
        ("sick", {"step": 5}),
        ("pinned", generation),
        ("quarantined", {**generation, "verdict": "corrupt", "reason": "sha256"}),
        ("request", {"id": "a", "verb": "stop", "by": "ann"}),
        ("answered", {"id": "a", "ok": True, "text": "x"}),
        ("attempt_ended", {"attempt": 1, "outcome": "crashed", "counters": {"crashed": 1, "last": {"exception": "E"}}}),
        ("gave_up", {"reason": "x", "signature": "E", "counters": {}, "tail": "x"}),
        ("held", {"by": "outlast", "reason": "x", "job_digest": "aa", "code_digest": "bb"}),
        ("released", {"by": "x", "why": "y"}),
        ("done", {"attempt": 1, "command_digest": "cc"}),
        ("stepped_back", generation),
        ("supervisor_stopped", {"code": 0, "reason": "x"}),
    ):  # fmt: skip
        writer.write([writer.append(event, data)])
    writer.close()


def _resolved(path: Path) -> Job:
    from outlast_jobs import durable

    return job_from_resolved(durable.read_file(path, 1 << 20).decode("utf-8", "replace"))


def _checked(path: Path) -> object:
    try:
        return bytes(read_checked(path))
    except (IntegrityError, OSError) as error:
        return error


def _json(path: Path) -> dict[str, Any]:
    return safejson.parse_object(path.read_bytes()[: 1 << 20], what="x", limit=1 << 20)


def _heard(data: bytes) -> list[Any]:
    """A notification of a process of ours, through all that hears it, into a supervisor that trains."""
    import os
    import socket

    me = ProcessIdentity.current()
    told: list[str] = []
    with selectors.DefaultSelector() as selector:
        intake = Intake(Trainers(selector), told.append)
        intake.know(me)
        credentials = (
            socket.SOL_SOCKET,
            socket.SCM_CREDENTIALS,
            _CREDENTIALS.pack(os.getpid(), os.geteuid(), 0),
        )
        message = _parse(data[:8192], [credentials], len(data) > 8192)
        events = intake.events(message) if message is not None else []
        intake._trainers.clear()
    state: State = Running(Ledger(attempt=2), live(FRESH, attached=True, trainers=(me,), phase="train"))
    for event in events:
        state, _ = decide(state, event, Context(POLICIES[0], NOW, 0.5))
    return [events, state, told]
