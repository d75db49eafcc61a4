"""Saves of what lies on a device: each is the state of its boundary, though the copy is made as late as can be."""

from __future__ import annotations

import pytest
from tests.listening import Listener
from tests.worker.test_meanwhile import EVERY, SCRIPT
from tests.worker.test_meanwhile import _check as check

ENDED = "from now on a save copies the whole state"


@pytest.fixture(params=["pinned", "carried"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(run: Listener) -> Listener:
    (run.folder / "streams.py").write_text(SCRIPT.with_name("streams.py").read_text())
    return run


def _through(run: Listener, kind: str, code: int = 0, **env: str) -> str:
    found, output = run.through(OUTLAST_SAVE_EVERY_STEPS=str(EVERY), DEVICE=kind, **env)
    assert found == code, output
    return output


def _modes(output: str) -> list[str]:
    return next(line for line in output.splitlines() if line.startswith("modes")).split()[1:]


def test_what_lies_on_a_device_is_copied_before_the_next_update(run: Listener, kind: str) -> None:
    """Each save but the run's first is copied beside the training, exact, of host and device; an update waits."""
    output = _through(run, kind)
    assert check(run) == [4, 8, 12, 16, 20, 24]
    assert _modes(output)[:5] == ["meanwhile:24"] * 5
    assert f"pinned: {kind == 'pinned'}" in output
    assert "weights" not in output


@pytest.mark.parametrize("mode", ["clip", "moments"])
def test_a_change_that_torch_sees_discards_the_copy(run: Listener, kind: str, mode: str) -> None:
    """As on the host: known before the copy has arrived, the next boundary saved, nothing sealed changed."""
    output = _through(run, kind, MODE=mode, SKIPPED="6")
    assert check(run) == [4, 9, 13, 16, 20, 24]
    assert output.count(ENDED) == 1


@pytest.mark.parametrize("mode", ["data", "numpy"])
def test_samples_taken_on_the_device_find_what_torch_does_not_see(
    run: Listener, kind: str, mode: str
) -> None:
    """Found when the copy has arrived, by the thread that writes: discarded, told at a boundary, and the end of it."""
    output = _through(run, kind, MODE=mode, SKIPPED="14")
    steps = check(run)
    assert steps[:3] == [4, 8, 12]
    assert 16 not in steps
    assert steps[-2:] == [20, 24]
    assert output.count(ENDED) == 1
    assert "saves since step 8 may hold such changes" in output


@pytest.mark.parametrize("mode", ["", "clip", "data"])
def test_rehearsals_compare_on_the_device(run: Listener, kind: str, mode: str) -> None:
    """Copied in front of all that follows, and compared before the update: every save is kept, and exact."""
    output = _through(run, kind, MODE=mode, REHEARSALS="3", SAMPLES="0")
    assert check(run) == [4, 8, 12, 16, 20, 24]
    assert _modes(output)[0] == "rehearsed:24"
    assert output.count(ENDED) == (mode != "")
    assert ("does not see it" in output) == (mode == "data")


@pytest.mark.parametrize(("skipped", "third"), [("9", 12), ("11", 13)])
def test_updates_that_a_graph_makes_are_never_copied_beside(
    run: Listener, kind: str, skipped: str, third: int
) -> None:
    """An optimizer's step that is recorded says so; from then on its device is copied at once, and all is exact.
    Recorded while a copy is under way, it moves the versions: that copy is discarded."""
    output = _through(run, kind, MODE="graph", SKIPPED=skipped)
    steps = check(run)
    assert steps[:3] == [4, 8, third]
    assert steps[-1] == 24
    assert output.count("an optimizer's step is recorded in a CUDA graph") == 1
    assert _modes(output)[-1] == "meanwhile:6"  # the numbers on the host


def test_updates_that_no_optimizer_tells_of_are_copied_at_once(run: Listener, kind: str) -> None:
    """Nothing stepped since the last save: it is not known what updates, and nothing is left to be copied later."""
    output = _through(run, kind, MODE="hand", SKIPPED="-1")
    assert check(run) == [4, 8, 12, 16, 20, 24]
    assert set(_modes(output)) == {"meanwhile:0"}
    assert "weights" not in output


def test_a_device_that_fails_costs_a_save_and_the_copying(run: Listener, kind: str) -> None:
    """That save is told as failed, and the later ones are written from the training's own thread."""
    output = _through(run, kind, MODE="broken", SKIPPED="10")
    assert check(run) == [4, 8, 16, 20, 24]
    assert len(run.values("X_OUTLAST_SAVE_FAILED")) == 1
    assert output.count("from now on the training waits for each save") == 1


def test_a_stop_with_a_copy_under_way_loses_nothing(run: Listener, kind: str) -> None:
    """TERM two steps after a save began: both are sealed, and the run goes on bit for bit."""
    _through(run, kind, 75, MODE="killed")
    assert run.values("X_OUTLAST_SEALED")[-2:] == ["step-000000012.a0001", "step-000000014.a0001"]
    assert "meanwhile:24" in _modes(_through(run, kind))
    assert check(run)[-1] == 24
