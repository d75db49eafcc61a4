"""A real training killed at any system call of a save resumes and comes to the same end, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Run
from tests.faults.forked import Forked
from tests.faults.points import Point, points, strike
from tests.faults.scale import chance, scaled, told
from tests.faults.stage import let_time_pass, litter, of_run
from tests.faults.training import SAVES, STEPS, End, Halted, Yard, all_whole, resume
from tests.realparts import needs

pytestmark = needs("strace")
KILLS, RESUMES = 12, 1
OPERATIONS = ("claim", "prune", "quarantine", "journal append", "status write", "start", "request", "sweep")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """Where the trainings of this module run."""
    made = Yard(tmp_path_factory.mktemp("yard"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(yard: Yard) -> End:
    """What the training comes to when nothing happens."""
    end = resume(yard.run())
    assert [line["step"] for line in end.steps] == list(range(1, STEPS + 1))
    assert end.state_sha256
    return end


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", SAVES)
def test_killed_at_any_call_of_a_save_a_training_comes_to_the_same_end(
    yard: Yard, undisturbed: End, which: str
) -> None:
    """Trainer and supervisor die there at once: all that is published is whole, and the next start ends the same."""
    halted = Halted(yard, SAVES[which])
    found = [point for point in points(halted) if str(yard.folder) in point.text]
    assert len(found) > 40
    dice = chance(which)
    drawn = scaled(dice.sample(found, KILLS), found)
    disks: dict[frozenset[tuple[str, int]], tuple[Run, Point]] = {}
    for point in drawn:
        struck = strike(halted, point)
        names = all_whole(halted.run)
        assert {line.split()[1] for line in struck.acknowledged} <= set(names), f"{point}: {struck.hit}"
        assert len(names) in (SAVES[which] - 1, SAVES[which])
        disk = halted.disk()
        if disk not in disks:
            disks[disk] = halted.copy(), point
    halted.close()
    left = list(disks.values())
    resumed = scaled(dice.sample(left, min(RESUMES, len(left))), left)
    for run, point in resumed:
        same_end(run, undisturbed, point)
    told(f"crash points of {len(found)}: the {which} save of a training", len(drawn))
    told(f"of {len(left)} different disks after these were resumed to the same end", len(resumed))


@pytest.mark.timeout(1800)
def test_killed_in_what_its_supervisor_does_a_training_comes_to_the_same_end(
    yard: Yard, undisturbed: End, tmp_path: Path
) -> None:
    """Cut in a claim, a deletion, a setting aside or any other write, the next start goes on to the same end."""
    halted = Halted(yard, SAVES["last"])
    calls = points(halted)
    strike(halted, calls[len(calls) // 2])  # so that a half-written save lies there, too
    cut = halted.copy()
    halted.close()
    forked, dice, number = Forked(), chance("supervisor"), 0
    try:
        for operation in scaled(dice.sample(OPERATIONS, 2), OPERATIONS):
            stage = of_run(cut.directory, tmp_path / operation / "stage", operation)
            found = stage.listed(forked, tmp_path / operation / "whole")
            for point in dice.sample(found, min(scaled(1, 8), len(found))):
                run = yard.run()
                stage.copy(run.directory.path)
                strike(forked.target(*stage.arguments(run.directory)), point)
                same_end(run, undisturbed, point)
                number += 1
    finally:
        forked.close()
    told("trainings cut in a write of their supervisor and resumed to the same end", number)


def same_end(run: Run, undisturbed: End, point: Point) -> None:
    """Started again it comes to the end of the undisturbed one, and nothing of what was cut is left."""
    let_time_pass(run.directory)
    assert resume(run) == undisturbed, f"killed at {point}\n{run.report()}"
    left = set(litter(run.directory)) - {f".writing-{run.attempts()[-1]:04d}"}
    assert not left, f"killed at {point}: something is left\n{run.report()}"
    shutil.rmtree(run.folder)
