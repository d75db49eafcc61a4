"""A system unit on a machine that boots, is cut off, and is shut down: the run goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import OUTLAST, Run
from tests.e2e.reference import STEPS, Reference, toy
from tests.realparts import needs
from tests.systemd.container import SHARED, Machine

pytestmark = needs("systemd", "container", "namespaces")

UNIT = "outlast-toy.service"
EVERY = 20
"""Steps between saves. On a slow machine one is in flight for most of them, and the next one waits for its end."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "run", toy("--step-seconds", 0.015, save={"every_steps": EVERY}, signals="outlast"))
    yield made
    made.close()


@pytest.fixture
def machine(tmp_path: Path, run: Run) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", run.folder)
    yield made
    made.close()


def test_a_run_goes_on_after_a_power_cut_and_after_a_shutdown(
    run: Run, machine: Machine, reference: Reference
) -> None:
    """Installed once, the run is carried to its end over a power cut and a shutdown, by boots alone; the
    shutdown costs no step, the cut at most one cadence and what was trained while a save was in flight."""
    machine.boot()
    done = machine.enter(OUTLAST, "systemd", str(SHARED / "job.yaml"), "--system", "--install", "--now")
    assert done.code == 0, done.err
    run.until_step(50)
    machine.cut()
    cut_at, saved = run.metrics(1)[-1]["step"], run.verified()[0].index.step  # type: ignore[union-attr]
    assert cut_at - 2 * EVERY <= saved, run.report()

    machine.boot()
    run.until_step(120, attempt=2)
    machine.power_off()
    assert run.metrics(2)[0]["step"] == saved + 1, run.report()
    stopped_at = run.metrics(2)[-1]["step"]
    assert stopped_at < STEPS
    assert run.verified()[0].index.step == stopped_at, run.report()  # type: ignore[union-attr]

    machine.boot()
    run.until_status(lambda status: status["done"], "the end")
    assert run.metrics(3)[0]["step"] == stopped_at + 1
    run.until(lambda: machine.show(UNIT)["ActiveState"] == "inactive", "an inactive unit")
    assert machine.show(UNIT)["Result"] == "success"
    reference.hold_end(run)
    machine.cut()

    machine.boot()
    run.until(lambda: machine.show(UNIT)["ActiveState"] == "inactive", "an inactive unit")
    found = machine.show(UNIT)
    assert (found["Result"], found["ExecMainStatus"]) == ("success", "0")
    assert int(found["ExecMainExitTimestampMonotonic"]) > 0, "it was not started"
    assert run.attempts() == [1, 2, 3]
