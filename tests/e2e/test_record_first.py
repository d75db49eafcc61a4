"""What an attempt is, is on disk before its worker exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.realparts import needs

_CALLS = ("-e", "trace=write,fsync,execve", "-e", "inject=fsync:delay_enter=200000")


def _times(trace: Path) -> tuple[int, int, int]:
    """Lines of the record of attempt 1, of the end of the first sync of the journal after it, of the worker's exec."""
    written = synced = 0
    syncing: set[str] = set()
    for number, line in enumerate(trace.read_text(errors="replace").splitlines(), 1):
        pid = line.split(maxsplit=1)[0]
        if re.search(r"\bwrite\(\d+<[^>]*/journal/.*attempt_started", line):
            written = written or number
        elif re.search(r"\bfsync\(\d+<[^>]*/journal/[^/>]*\.jsonl>", line):
            if written and line.rstrip().endswith("<unfinished ...>"):
                syncing.add(pid)
            elif written:
                synced = synced or number
        elif "fsync resumed" in line and pid in syncing:
            synced = synced or number
        elif (
            re.search(r"\bexecve\([^\[]*\[.*the-worker", line) and "/strace" not in line and "run" not in line
        ):
            return written, synced, number
    raise AssertionError("no worker was started")


@needs("strace")
def test_a_worker_starts_when_its_record_is_on_disk(make_run: MakeRun, tmp_path: Path) -> None:
    """The record of an attempt is written and synced, however slow the disk, before its worker is executed."""
    run = make_run({"command": ["sh", "-c", "exit 0", "the-worker"], "signals": "native"})
    trace = tmp_path / "trace"
    first = run.start(wrapper=("strace", "-f", "-y", "-s", "400", "-o", str(trace), *_CALLS))
    assert first.wait() == 0, run.report()
    written, synced, executed = _times(trace)
    assert 0 < written < synced < executed, (written, synced, executed)
