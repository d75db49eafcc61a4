"""`python -O`, which drops every `assert`, changes nothing: no check of ours is one."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from tests.e2e import damage
from tests.e2e.conftest import MakeRun
from tests.e2e.damage import META, SHARD
from tests.e2e.harness import PATIENCE, Run

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode

OPTIMIZED = (sys.executable, "-O")
TOTAL = 150  # far from done when it is interrupted
MINI = ["{scripts}/mini.py", "--workers", 0, "--steps", TOTAL]
SAVES = {"save": {"every_steps": 1}, "keep": {"last": 100}}
LAST = {"save": {"every_steps": TOTAL}}


@pytest.mark.parametrize("package", ["outlast_supervisor", "outlast_worker", "outlast_jobs"])
def test_no_check_is_an_assert(package: str) -> None:
    """Nothing in the packages asserts, or asks whether asserts are on."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    modules = [p for place in spec.submodule_search_locations for p in Path(place).rglob("*.py")]
    assert len(modules) > 10
    found = [
        f"{path.name}:{node.lineno}"
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ]
    assert found == []


def test_corruption_is_refused_all_the_same(make_run: MakeRun) -> None:
    """With -O on both sides each kind of bad generation is refused, and the run ends as it does without."""
    plain = make_run({"command": ["{python}", *MINI], **LAST})
    undisturbed = plain.start()
    run = make_run({"command": ["{python}", "-O", *MINI], **SAVES})
    first = run.start(wrapper=OPTIMIZED)
    run.until(lambda: len(run.generations()) >= 10, "generations")
    first.process.terminate()
    assert first.wait() == ExitCode.SAVED, run.report()
    mark = run.folder / "code ran"
    newest, led, linked, stranger, hostile, rotten, sound = run.generations()[:7]
    damage.flip(META)(newest)
    damage.leads_outside("../../outside.pt")(led)
    damage.linked_folder(linked)
    damage.foreign(stranger)
    damage.runs_code(mark)(hostile)
    damage.flip(SHARD)(rotten)
    damage.remember(run, rotten)
    run.write_job({"command": ["{python}", "-O", *MINI], "keep": SAVES["keep"], **LAST})

    assert run.start(wrapper=OPTIMIZED).wait(3 * PATIENCE) == 0, run.report()

    assert not mark.exists()
    starts = [record.data["resume"] for record in run.records(journal.ATTEMPT_STARTED)]
    assert starts == [None, hostile.name, rotten.name, sound.name]
    aside = {record.data["generation"] for record in run.records(journal.QUARANTINED)}
    assert aside == {path.name for path in (newest, led, linked, hostile, rotten)}
    assert undisturbed.wait() == 0, plain.report()
    assert final_digest(run) == final_digest(plain)


def test_nothing_usable_is_no_start_from_zero(make_run: MakeRun) -> None:
    """With -O too a run without a usable generation is not started, and ends with 65."""
    run = make_run({"command": ["true"], "signals": "native"})
    assert run.start(wrapper=OPTIMIZED).wait() == 0
    (run.directory.checkpoints / "step-000000005.a0001").mkdir()
    run.write_job({"command": ["true", "again"], "signals": "native"})
    assert run.start(wrapper=OPTIMIZED).wait() == ExitCode.UNUSABLE, run.report()
    assert run.attempts() == [1]


def final_digest(run: Run) -> str:
    index = run.verified()[0].index
    assert index is not None
    assert index.final
    return str(index.state_sha256)
