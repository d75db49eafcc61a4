"""Points are exact: a process stops where it is asked to, with on disk what the name of the point says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from outlast_jobs.contract import Env
from outlast_supervisor.drill.gate import Gate, path_with_hook

SEAL = """
import sys
from pathlib import Path
from outlast_jobs import durable
from outlast_jobs.generation import GenerationName, Index
from outlast_jobs.sealer import Sealer

checkpoints = Path(sys.argv[1])
name = GenerationName(5, 1)
(checkpoints / ".writing-0001").mkdir()
sealer = Sealer(checkpoints, 1, name)
try:
    sealer.begin()
    sealer.add("meta.pt", b"one")
    sealer.add("model.shard-000.pt", b"two")
    index = Index(run_id="0" * 32, attempt=1, step=5, healthy=True)
    sealer.seal(index)
except OSError as error:
    sys.exit(error.errno)
"""
PRUNE = """
import sys
from pathlib import Path
from outlast_jobs import durable

generation = Path(sys.argv[1]) / "step-000000005.a0001"
generation.mkdir()
for member in ("index.json", "meta.pt"):
    (generation / member).write_text("x")
durable.remove_tree(generation, generation.parent)
"""
UNSEALED = {"meta.pt"}
FILES = {*UNSEALED, "model.shard-000.pt"}
WRITTEN = {*FILES, "index.json"}
ALL = {*WRITTEN, "index.json.sha256"}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate beside a run directory with an empty folder of checkpoints."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return Gate(tmp_path / "gate")


@contextlib.contextmanager
def process(gate: Gate, code: str, attempt: str | None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python of a drilled run, of this attempt or a supervisor's."""
    env = {k: v for k, v in os.environ.items() if k != Env.ATTEMPT}
    env |= {Env.DRILL: str(gate.folder), "PYTHONPATH": path_with_hook(None)}
    env |= {Env.ATTEMPT: attempt} if attempt else {}
    checkpoints = gate.folder.parent / "run" / "checkpoints"
    running = subprocess.Popen([sys.executable, "-c", code, str(checkpoints)], env=env)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def comes(gate: Gate, running: subprocess.Popen[bytes], point: str) -> None:
    """Wait until the process stands at the point."""
    wait_until(lambda: gate.taken() or running.poll() is not None, 60, f"the point {point}")
    assert gate.stopped is not None, f"it ended with {running.poll()} before it came to {point}"


def lies(gate: Gate) -> dict[str, set[str]]:
    """Every folder of files among the checkpoints, below its name up to the first dot of a number."""
    root = gate.folder.parent / "run" / "checkpoints"
    found: dict[str, set[str]] = {}
    for folder, _, files in os.walk(root):
        if files:
            found[str(Path(folder).relative_to(root))] = set(files)
    return found


UNDER = ".writing-0001/step-000000005.a0001"
SEALED = "step-000000005.a0001"


@pytest.mark.parametrize(
    ("point", "there"),
    [
        ("files", {UNDER: UNSEALED}),
        ("index", {UNDER: FILES}),
        ("digest", {UNDER: WRITTEN}),
        ("rename", {UNDER: ALL}),
        ("sealed", {SEALED: ALL}),
    ],
)
def test_a_save_stops_between_its_acts(gate: Gate, point: str, there: dict[str, set[str]]) -> None:
    """At each part of a save the trainer stands still with just that part done, and goes on when released."""
    gate.arm(point, attempt=1)
    with process(gate, SEAL, "1") as running:
        comes(gate, running, point)
        assert lies(gate) == there
        gate.release()
        assert running.wait(60) == 0
    assert lies(gate) == {SEALED: ALL}


def test_a_deletion_stops_before_and_within(gate: Gate) -> None:
    """The supervisor stands still before a generation is put out of sight, and while its files are deleted."""
    gate.arm("prune", role="supervisor")
    with process(gate, PRUNE, None) as running:
        comes(gate, running, "prune")
        assert lies(gate) == {SEALED: {"index.json", "meta.pt"}}
        gate.arm("pruning", role="supervisor")
        gate.release()
        comes(gate, running, "pruning")
        assert [name.startswith(".trash-") for name in lies(gate)] == [True]
        gate.release()
        assert running.wait(60) == 0
    assert lies(gate) == {}


@pytest.mark.parametrize("asked", [{"attempt": 2}, {"role": "supervisor"}])
def test_who_is_not_meant_goes_on(gate: Gate, asked: dict[str, Any]) -> None:
    """An earlier attempt, and another role, pass the point."""
    gate.arm("index", **asked)
    with process(gate, SEAL, "1") as running:
        assert running.wait(60) == 0
    assert not gate.taken()


def test_a_start_stops_before_anything_is_imported(gate: Gate) -> None:
    """A worker stops as soon as its Python begins; who comes to a point is killed where it stands."""
    gate.arm("import", attempt=1)
    with process(gate, SEAL, "1") as running:
        comes(gate, running, "import")
        assert gate.stopped is not None
        os.kill(gate.stopped.pid, signal.SIGKILL)
        assert running.wait(60) == -signal.SIGKILL
    assert lies(gate) == {}


def test_writes_are_refused_as_long_as_asked(gate: Gate) -> None:
    """While a disk is said to be full, nothing can be made among the checkpoints; afterwards it can."""
    gate.refuse(28)
    with process(gate, SEAL, "1") as running:
        assert running.wait(60) != 0
    assert lies(gate) == {}
    gate.refuse(None)
    with process(gate, SEAL, "1") as running:
        assert running.wait(60) == 0
    assert lies(gate) == {SEALED: ALL}
