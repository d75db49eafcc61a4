"""What was decided is on disk before it is done: a worker exists after its record, a hook runs after the end's."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.conftest import MakeRun
from tests.realparts import needs

_CALLS = ("-e", "trace=write,fsync,execve", "-e", "inject=fsync:delay_enter=200000")


def _times(trace: Path, event: str, program: str) -> tuple[int, int, int]:
    """Lines of an event's record, of the end of the first sync of the journal after it, of the program's exec."""
    written = synced = 0
    syncing: set[str] = set()
    for number, line in enumerate(trace.read_text(errors="replace").splitlines(), 1):
        pid = line.split(maxsplit=1)[0]
        if re.search(rf"\bwrite\(\d+<[^>]*/journal/.*{event}", line):
            written = written or number
        elif re.search(r"\bfsync\(\d+<[^>]*/journal/[^/>]*\.jsonl>", line):
            if written and line.rstrip().endswith("<unfinished ...>"):
                syncing.add(pid)
            elif written:
                synced = synced or number
        elif "fsync resumed" in line and pid in syncing:
            synced = synced or number
        elif (
            re.search(rf"\bexecve\([^\[]*\[.*{program}", line) and "/strace" not in line and "run" not in line
        ):
            return written, synced, number
    raise AssertionError(f"no {program} was started")


@needs("strace")
def test_what_is_done_was_recorded_before(make_run: MakeRun, tmp_path: Path) -> None:
    """However slow the disk, an attempt's record is synced before its worker starts, and the run's before a hook."""
    hooks = {"done": "echo the-hook"}
    run = make_run({"command": ["sh", "-c", "exit 0", "the-worker"], "signals": "native", "hooks": hooks})
    trace = tmp_path / "trace"
    first = run.start(wrapper=("strace", "-f", "-y", "-s", "400", "-o", str(trace), *_CALLS))
    assert first.wait() == 0, run.report()
    for event, program in (("attempt_started", "the-worker"), (r'event\\":\\"done', "the-hook")):
        written, synced, executed = _times(trace, event, program)
        assert 0 < written < synced < executed, (event, written, synced, executed)
