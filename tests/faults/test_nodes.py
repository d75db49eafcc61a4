"""A whole node loses its power, again and again, and boots again: the run is the run that nothing disturbed."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from tests.e2e.harness import Run
from tests.e2e.reference import STEPS, Reference, make_reference, pause, toy
from tests.faults.disk import Disk, own_mounts
from tests.faults.node import Node
from tests.faults.scale import chance, scaled, told
from tests.realparts import needs

from outlast_jobs import events as journal
from outlast_jobs.generation import GenerationName
from outlast_jobs.rundir import RunDirectory

pytestmark = needs("loopback disks", "namespaces")

CUTS = scaled(2, 20)
STEP_SECONDS = scaled(0.005, 0.02)  # so that the run is not complete before the last cut
_EVERY = 8  # steps from save to save
_LONGEST = 0.2  # seconds from an attempt's first seal until the power goes
_IMPORTING = 1.5  # seconds into a boot


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The undisturbed run of the toy, once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    return make_reference((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reference")


@pytest.mark.timeout(1800)
def test_a_node_that_loses_its_power_again_and_again_brings_the_run_to_its_end(
    tmp_path: Path, reference: Reference
) -> None:
    """Cut off with all that its disk had not yet taken, and booted again, a node completes the run bit for bit: each
    step once, one trainer at a time, and from each boot on the newest seal."""
    with own_mounts():
        disk = Disk(tmp_path, "ext4")
        job = toy(
            "--step-seconds", STEP_SECONDS, save={"every_steps": _EVERY}, run_dir=str(disk.path / "run")
        )
        run = Run(tmp_path / "node", job)
        run.directory = RunDirectory(disk.path / "run")
        node = Node(tmp_path, "node-a")
        try:
            _cut_again_and_again(run, node, disk)
            last = node.boot(run)
            assert last.wait() == 0, run.report()
            reference.hold_end(run)
            _hold_attempts(run, node)
        finally:
            run.close()
            disk.close()
    told("node reboots", CUTS)


def _cut_again_and_again(run: Run, node: Node, disk: Disk) -> None:
    instants = chance("nodes")
    newest = None
    for number in range(CUTS):
        supervisor = node.boot(run)
        # wherever it is by then: it looks for what to resume from, it imports, it restores
        if number % 5 == 4:
            pause(instants.uniform(0.0, _IMPORTING))
        else:
            supervisor.until(lambda before=newest: _sealed(run) != before, "a seal")  # type: ignore[misc]
            newest = _sealed(run)
            pause(instants.uniform(0.0, _LONGEST))
        disk.cut()
        node.cut()
        assert not run.of_attempts(), run.described()
        disk.back()
        findings = run.findings()
        assert all(f.verdict == "verified" for f in findings), run.report()
        kept = max((f.name for f in findings if f.name is not None), default=None)
        assert newest is None or (kept is not None and newest <= kept), "a seal is lost"


def _sealed(run: Run) -> GenerationName | None:
    """The newest that the trainer has told of: its name alone may be seen before it is on disk."""
    names = [GenerationName.parse(r.data["generation"]) for r in run.records(journal.SEALED)]
    return max((name for name in names if name is not None), default=None)


def _hold_attempts(run: Run, node: Node) -> None:
    """Each attempt is of another boot, and had ended before the next one began."""
    begun = run.records(journal.ATTEMPT_STARTED)
    assert len({record.boot for record in begun}) == len(begun), run.report()
    assert {record.boot for record in begun} <= set(node.boots)
    assert {record.host for record in begun} == {node.name}
    times = [[line["t"] for line in run.metrics(attempt)] for attempt in run.attempts()]
    trained = [one for one in times if one]
    assert all(before[-1] < after[0] for before, after in pairwise(trained))
    assert run.history()[-1]["step"] == STEPS
