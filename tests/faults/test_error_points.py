"""Each call of an operation fails in turn, with each errno of a failing disk: it is told, and nothing is lost by it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.faults import stage as stages
from tests.faults.forked import Forked
from tests.faults.points import Point, Struck, strike
from tests.faults.scale import chance, scaled, told
from tests.faults.scripts.operate import AGAIN, OPERATIONS
from tests.faults.stage import Stage, go_on, hold
from tests.faults.test_crash_points import forked
from tests.realparts import needs

__all__ = ["forked"]
pytestmark = needs("strace")
SAMPLE = 10
RETRIED = ("journal append again",)
"""Operations that do again what failed."""
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EINTR")
WRITES = ("write", "pwrite64", "writev")
SYNCS = ("fsync", "fdatasync")
CALLS = (
    *WRITES,
    *SYNCS,
    *(
        "openat",
        "mkdir",
        "mkdirat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "unlink",
        "unlinkat",
    ),
    *("rmdir", "ftruncate", "fallocate", "fchmod", "flock", "close"),
)
_SAID = re.compile(r"^(\w*Error|outlast_jobs\.errors\.\w+): (.*)$", re.MULTILINE)


def reported(struck: Struck, error: str) -> bool:
    """Whether the operation failed; AssertionError where it failed in another way than by the system's error."""
    if struck.code == 0:
        return False
    kinds = _SAID.findall(struck.err)
    assert struck.code == 1, f"ended with {struck.code}: {struck.err[-2000:]}"
    assert kinds, struck.err[-2000:]
    kind, text = kinds[-1]
    named = os.strerror(getattr(errno, error)) in text or kind.startswith("outlast_jobs.errors.")
    assert named, f"said {kind}: {text}\n{struck.err[-3000:]}"
    return True


def fail(
    stage: Stage, forked: Forked, point: Point, error: str, before: int, total: int, folder: Path
) -> None:
    """Let the call fail, look, and go on."""
    run = stage.copy(folder)
    struck = strike(forked.target(*stage.arguments(run)), point, error)
    try:
        failed = reported(struck, error)
        acknowledged = [line for line in struck.acknowledged if line.split()[0] != AGAIN]
        failed = failed or acknowledged != struck.acknowledged
        if stage.operation in RETRIED:
            assert len(acknowledged) == total, "what failed once was not done again"
        elif point.name in SYNCS and error != "EINTR":
            assert failed, "a sync that failed is not told"
            assert len(acknowledged) == before, "something counts as done after a sync that failed"
        hold(stage, run, struck.acknowledged)
        go_on(stage, run, struck.acknowledged)
    except AssertionError as broken:
        raise AssertionError(f"{stage.operation}, {error} at {point}: {broken}\n{struck.hit}") from broken
    shutil.rmtree(folder)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_with_any_call_failing_an_operation_tells_it_and_loses_nothing(
    tmp_path: Path, forked: Forked, operation: str
) -> None:
    """It fails by that error or does without; what it said is on disk, what was good stays, the next goes well."""
    stage = stages.stage(tmp_path / "stage", operation)
    found = stage.listed(forked, tmp_path / "whole")
    said = [p.number for p in found if p.text.startswith("write(1<")]
    before = {p.number: sum(number < p.number for number in said) for p in found}
    every = [
        (p, error) for p in found if p.name in CALLS and not p.text.startswith("write(1<") for error in ERRORS
    ]
    assert len(every) >= 6 * len(ERRORS)
    drawn = scaled(chance(f"errors/{operation}").sample(every, min(SAMPLE, len(every))), every)
    for number, (point, error) in enumerate(drawn):
        fail(stage, forked, point, error, before[point.number], len(said), tmp_path / f"p{number:05d}")
    told(f"error injections of {len(every)}: {operation}", len(drawn))


def test_after_a_failed_sync_a_record_is_written_anew_before_it_is_synced_again(
    tmp_path: Path, forked: Forked
) -> None:
    """A second sync alone may say that all is well with what the first one threw away: the bytes are given again."""
    stage = stages.stage(tmp_path / "stage", RETRIED[0])
    syncs = [p for p in stage.listed(forked, tmp_path / "whole") if p.name == "fsync"]
    assert len(syncs) == 3
    for point in syncs:
        run = stage.copy(tmp_path / str(point.number))
        target = forked.target(*stage.arguments(run))
        traced = "trace=write,fsync,ftruncate"
        outcome = target.traced(
            ["-e", traced, "-e", f"inject=fsync:error=EIO:when={point.when}"], kills=False
        )
        calls = [line.split("(")[0].split()[-1] for line in outcome.trace if ".jsonl>" in line]
        at = next(n for n, line in enumerate(outcome.trace) if "INJECTED" in line)
        then = [line.split("(")[0].split()[-1] for line in outcome.trace[at + 1 :] if ".jsonl>" in line]
        assert calls
        assert then[:3] == ["ftruncate", "write", "fsync"], outcome.trace
        hold(stage, run, outcome.out.splitlines())
