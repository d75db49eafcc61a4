"""Killed at each system call of an operation, the disk is sound, and the next start goes on and clears up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults import stage as stages
from tests.faults.forked import Forked
from tests.faults.points import Point, strike
from tests.faults.scale import chance, scaled, told
from tests.faults.scripts.broken import BROKEN
from tests.faults.scripts.operate import OPERATIONS
from tests.faults.stage import Stage, go_on, hold
from tests.realparts import needs

from outlast_jobs.rundir import RunDirectory

pytestmark = needs("strace")
SAMPLE = 8
CHANGING = {"write", "openat", "mkdir", "rename", "renameat", "renameat2", "unlink", "unlinkat", "fsync"}


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """Where the operations are carried out."""
    made = Forked()
    yield made
    made.close()


def cut(stage: Stage, forked: Forked, point: Point, folder: Path, dice: Random | None = None) -> None:
    """Kill the operation at this call, look, and go on; with dice the next start is killed as well, and looked at."""
    run = stage.copy(folder)
    struck = strike(forked.target(*stage.arguments(run)), point)
    try:
        hold(stage, run, struck.acknowledged)
        if dice is not None:
            run = cut_again(stage, forked, run, dice)
            hold(stage, run, struck.acknowledged)
        go_on(stage, run, struck.acknowledged)
    except AssertionError as error:
        raise AssertionError(f"{stage.operation}, killed at {point}: {error}\n{struck.hit}") from error
    shutil.rmtree(folder)


def cut_again(stage: Stage, forked: Forked, run: RunDirectory, dice: Random) -> RunDirectory:
    """Kill the start that follows at any of its calls."""
    second = Stage(run, stage.run_id, "start", stage.whole)
    unharmed = run.path.with_name(f"{run.path.name}-listed")
    point = dice.choice(second.listed(forked, unharmed))
    shutil.rmtree(unharmed)
    strike(forked.target(*second.arguments(run)), point)
    return run


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_at_any_call_of_an_operation_nothing_is_lost_and_nothing_is_left(
    tmp_path: Path, forked: Forked, operation: str
) -> None:
    """What was acknowledged is there, all that has a final name is whole, and no leftover blocks or stays."""
    stage = stages.stage(tmp_path / "stage", operation)
    found = stage.listed(forked, tmp_path / "whole")
    assert len(found) > 8
    dice = chance(operation)
    drawn = scaled(dice.sample(found, min(SAMPLE, len(found))), found)
    twice = {point.number for point in dice.sample(drawn, scaled(2, len(drawn) // 4))}
    for point in drawn:
        cut(stage, forked, point, tmp_path / f"p{point.number:04d}", dice if point.number in twice else None)
    told(f"crash points of {len(found)}: {operation}", len(drawn))
    told("of these again in the start that followed", len(twice))


SEEN = {
    "save": "index.json",
    "prune": "missing",
    "quarantine": "what is bad is kept, once",
    "status write": "there was a status",
    "journal append": "acknowledged, and not on the disk: recorded",
    "single file": "no single file is valid",
}


@pytest.mark.parametrize("operation", BROKEN)
def test_a_broken_order_is_seen(tmp_path: Path, operation: str) -> None:
    """Where an operation is written carelessly, some call of it is found at which a kill does harm."""
    stage = stages.stage(tmp_path / "stage", operation)
    broken = Forked(operation)

    def attack() -> None:
        for point in stage.listed(broken, tmp_path / "whole"):
            if point.name in CHANGING:
                cut(stage, broken, point, tmp_path / f"p{point.number:04d}")

    try:
        with pytest.raises(AssertionError, match=SEEN[operation]):
            attack()
    finally:
        broken.close()
