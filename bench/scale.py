"""Measure what grows with a run's age and a folder's size: processor time for a small, a middle and a large one.

    python bench/scale.py [--quick] [--folder DIR] [--only KIND]

Processor time, and so about the same on a busy machine. What counts is how it grows along a row. The large ones are
10,000 generations, a journal of a million records, a log of 10 GB (its middle is a hole), 1,000 job files. It needs
1 GB in the folder, by default in /dev/shm, and 200 MB of memory. `docs/limits.md` says what is to be expected.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from outlast_jobs import events, verify
from outlast_jobs.generation import (
    INDEX,
    INDEX_DIGEST,
    FileEntry,
    GenerationName,
    Index,
    digest_line,
    encode_index,
)
from outlast_jobs.history import read_history
from outlast_jobs.jobfile import job_from_command
from outlast_jobs.jobfile_model import Keep
from outlast_jobs.journal import JournalWriter
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.chores import Desk, prune
from outlast_supervisor.daemon.roster import folder_books
from outlast_supervisor.follow import Follower
from outlast_supervisor.ledger import answer_to, journal_end
from outlast_supervisor.logview import attempt_logs, last_lines

OUTLAST = str(Path(sys.executable).with_name("outlast"))
ENV = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"NO_COLOR": "1"}
GENERATIONS = (100, 1000, 10_000)
RECORDS = (1000, 100_000, 1_000_000)
LOG = (10**6, 10**8, 10**10)
JOBS = (10, 100, 1000)
PAYLOAD = b"m" * 100

Figures = Iterator[tuple[str, float | Callable[[], object]]]


class _Once(Exception):
    """Carries the one measurement of what is not to be repeated."""


def processor_time() -> float:
    """Seconds that this process and the children it waited for have spent."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def once(act: Callable[[], object]) -> None:
    """Not to be repeated: it is slow, or another thing the second time."""
    before = processor_time()
    act()
    raise _Once(processor_time() - before)


def spent(act: Callable[[], object], rounds: int = 3) -> float:
    """The median processor time that something takes."""
    times = []
    for _ in range(rounds):
        before = processor_time()
        try:
            act()
        except _Once as told:
            return float(told.args[0])
        times.append(processor_time() - before)
    return statistics.median(times)


def table(folder: Path, what: str, measure: Callable[[Path, int], Figures], sizes: Sequence[int]) -> None:
    """Measure each size, and print a line for each figure."""
    print(f"\n{what:<56}" + "".join(f"{size:>16,}" for size in sizes), flush=True)
    found: dict[str, list[float]] = {}
    for size in sizes:
        for name, value in measure(folder, size):
            found.setdefault(name, []).append(value if isinstance(value, float) else spent(value))
    for name, values in found.items():
        print(f"{name:<56}" + "".join(f"{value * 1000:>16.1f}" for value in values), flush=True)


# -- what is made ---------------------------------------------------------------------------------------------


def new_run(folder: Path) -> tuple[RunDirectory, str]:
    """An empty run directory, and its id."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True)
    return run, run.create().run.run_id


def generation(run: RunDirectory, run_id: str, step: int) -> str:
    """A sealed generation of one small file, as a sealer leaves it but for the fsyncs."""
    path = run.checkpoints / str(GenerationName(step, 1))
    path.mkdir(parents=True)
    (path / "meta.pt").write_bytes(PAYLOAD)
    files = {"meta.pt": FileEntry(len(PAYLOAD), hashlib.sha256(PAYLOAD).hexdigest())}
    index = encode_index(Index(run_id=run_id, attempt=1, step=step, files=files, healthy=True))
    (path / INDEX).write_bytes(index)
    (path / INDEX_DIGEST).write_bytes(digest_line(index))
    return path.name


def records(run: RunDirectory, count: int) -> None:
    """A journal of so many records, nearly all of them of saves; the attempt in it has vanished."""
    writer = JournalWriter.open(run)
    stats = {"meta.pt": [1, 2, 3], INDEX: [1, 2, 3], INDEX_DIGEST: [1, 2, 3]}
    lines = [writer.append(events.SUPERVISOR_STARTED, {"identity": "1:2:b"})]
    lines.append(writer.append(events.ATTEMPT_STARTED, {"attempt": 1, "cause": "start", "host": "h"}))
    with open(writer.path, "ab") as file:
        for number in range(1, count // 3 + 1):
            name, old = (str(GenerationName(step, 1)) for step in (number, max(1, number - 3)))
            sealed = {"generation": name, "step": number, "bytes": 1000, "seconds": 1.5}
            lines.append(writer.append(events.SEALED, sealed))
            lines.append(
                writer.append(events.VERIFIED, {"generation": name, "stats": stats, "healthy": True})
            )
            lines.append(
                writer.append(events.DROPPED, {"generation": old, "reason": "not one of the last 3"})
            )
            if len(lines) > 10_000:
                file.write(b"".join(lines))
                lines.clear()
        file.write(b"".join(lines))
    writer.close()


def start(run: RunDirectory) -> None:
    """A whole `outlast run`, of another command each time: the same would be done already."""
    words = [OUTLAST, "run", "--quiet", "--run-dir", str(run.path), "--", "true", str(time.time())]
    subprocess.run(words, env=ENV, check=True)


def outlast(*words: str) -> None:
    """One command, whose output is not looked at."""
    subprocess.run([OUTLAST, *words], env=ENV, check=True, stdout=subprocess.DEVNULL)


# -- what is measured -----------------------------------------------------------------------------------------


def generations(folder: Path, size: int) -> Figures:
    """A folder of generations: start, status, the choice of the newest, retention."""
    run, run_id = new_run(folder / f"generations-{size}")
    names = [generation(run, run_id, step) for step in range(1, size + 1)]
    desk = Desk(run, run_id, lambda event, data: None)
    desk.remembered = {n: verify.look(run.checkpoints / n, run_id, full=True).stats for n in names}
    base = job_from_command(["true"], None, folder)
    job = msgspec.structs.replace(base, keep=Keep(last=3, every_steps=1))  # keeps them all
    yield (
        "the newest usable one, its digest remembered",
        lambda: verify.newest_usable(run.checkpoints, run_id, desk.remembered),
    )
    yield "retention where all are kept, the first of a life", lambda: once(lambda: prune(desk, job, None))
    yield "retention where all are kept, after each save", lambda: prune(desk, job, None)
    yield "outlast run of a command that does nothing", lambda: start(run)
    yield "outlast status", lambda: outlast("status", str(run.path))
    shutil.rmtree(run.path)


def journals(folder: Path, size: int) -> Figures:
    """A long journal: start, status, an answer."""
    run, _ = new_run(folder / f"journal-{size}")
    records(run, size)
    since = journal_end(run)
    yield "a replay of all of it", lambda: once(lambda: read_history(run))
    yield "an answer in it, as a command waits for one", lambda: answer_to(run, "x", since)
    yield "outlast run of a command that does nothing", lambda: once(lambda: start(run))
    yield "outlast status", lambda: outlast("status", str(run.path))
    shutil.rmtree(run.path)


def logs(folder: Path, size: int) -> Figures:
    """A long log: its end, following it, status."""
    run, _ = new_run(folder / f"log-{size}")
    run.logs.mkdir(exist_ok=True)
    path = run.attempt_log(1)
    with open(path, "wb") as file:
        file.write(b"--- outlast: attempt 1\n")
        file.seek(size)
        file.write(b"a line of the training\n" * 10_000)
    run.write_status({"as_of": time.time(), "state": "finished", "name": "x", "done": True})

    def follow() -> None:
        with Follower(run, last_lines(attempt_logs(run.logs), 10), network=False) as follower:
            list(follower.read())
            with open(path, "ab") as file:
                file.write(b"new\n")
            follower.wait(5)
            if not b"".join(piece.data for piece in follower.read()).endswith(b"new\n"):
                raise SystemExit("the new line was not seen")

    yield "the last 100 lines", lambda: last_lines(attempt_logs(run.logs), 100)
    yield "following it: from the last lines on, a new one", follow
    yield "outlast logs -n 100", lambda: outlast("logs", "-n", "100", str(run.path))
    yield "outlast status", lambda: outlast("status", str(run.path))


def daemons(folder: Path, size: int) -> Figures:
    """A folder of job files of which two may run: until all are known, its cost when nothing happens, status."""
    jobs = folder / f"jobs-{size}"
    jobs.mkdir()
    for number in range(size):
        text = f"name: job-{number:04d}\ncommand: [sleep, '1000']\nsave: {{every_steps: 10}}\n"
        (jobs / f"job-{number:04d}.yaml").write_text(text)
    daemon = subprocess.Popen(
        [OUTLAST, "daemon", "--max-running", "2", str(jobs)],
        env=ENV,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: listed(jobs) >= size, f"{size} jobs to be listed")
        yield "until each job is known", _spent(daemon.pid)
        time.sleep(5)  # what it still does at its start is not what it costs
        before = _spent(daemon.pid)
        time.sleep(30)  # the stretch that is measured
        yield "a minute in which nothing happens", 2 * (_spent(daemon.pid) - before)
        yield "outlast status of the folder", lambda: once(lambda: outlast("status", str(jobs)))
        yield "its memory, in MB", _resident(daemon.pid) / 1e6
    finally:
        subprocess.run([OUTLAST, "drain", str(jobs)], env=ENV, check=False, capture_output=True, timeout=60)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(30)


def listed(jobs: Path) -> int:
    """How many jobs the daemon has written down."""
    books = folder_books(jobs)
    return len(books.jobs) if books else 0


def until(condition: Callable[[], bool], what: str, patience: float = 300.0) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {patience:g} s in vain for {what}")
        time.sleep(0.1)  # no figure hangs on it


def _spent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return float(line.split()[1])


KINDS = {
    "generations": ("generations in a folder", generations, GENERATIONS),
    "journals": ("records in the journal", journals, RECORDS),
    "logs": ("bytes of log", logs, LOG),
    "daemons": ("job files of a daemon, two may run", daemons, JOBS),
}


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="without the largest of each")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where to make them")
    parser.add_argument("--only", choices=tuple(KINDS))
    options = parser.parse_args()
    print("processor time, in milliseconds")
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="outlast-scale-") as made:
        for kind, (what, measure, sizes) in KINDS.items():
            if options.only in (None, kind):
                table(Path(made), what, measure, sizes[: -1 if options.quick else None])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nmost memory of this program: {peak:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
