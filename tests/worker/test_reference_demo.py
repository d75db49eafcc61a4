"""The demonstration: no difference after a cut, with either kind of checkpoint; and it would tell if there were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlast_worker import capture_rng_state, demo, folder, run_resume_demo
from outlast_worker.digest import first_difference


@pytest.mark.parametrize("sharded", [False, True])
def test_the_resumed_losses_are_those_of_the_run_never_cut(tmp_path: Path, sharded: bool) -> None:
    """Cut in mid-epoch and resumed in a fresh process, the largest loss difference is exactly 0."""
    before = capture_rng_state()
    result = run_resume_demo(
        total_steps=14, interrupt_at=8, ckpt_dir=tmp_path, sharded=sharded, seed=3, every_steps=3, keep_last=2
    )
    assert first_difference(before, capture_rng_state()) is None
    assert result["max_loss_diff_after_resume"] == 0.0
    assert result["passed"] is True
    assert (result["epoch"], result["batch_in_epoch"]) == (1, 3)
    assert len(result["losses_resumed"]) == 6
    assert [name[:14] for name in result["kept"]] == ["step-000000008", "step-000000006"]
    assert json.loads((tmp_path / "resume-demo.json").read_text()) == result
    if sharded:
        index = json.loads((tmp_path / result["checkpoint"] / "index.json").read_text())
        assert index["extra"]["num_shards"] == 3


def test_a_state_that_is_forgotten_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the random streams not what they were at the cut, the demonstration would fail."""
    original = folder.save_checkpoint

    def forgetful(*args: Any, **kwargs: Any) -> object:
        demo.torch.manual_seed(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(folder, "save_checkpoint", forgetful)
    result = run_resume_demo(total_steps=8, interrupt_at=4, ckpt_dir=tmp_path)
    assert result["max_loss_diff_after_resume"] > 1e-4
    assert result["passed"] is False


@pytest.mark.parametrize(
    ("expected", "found", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], None),
        ([1.0, 2.0], [1.0], None),
        ([float("nan")], [float("nan")], None),
        ([float("inf")], [float("inf")], None),
    ],
)
def test_what_cannot_be_compared_is_not_passed(
    expected: list[float], found: list[float], largest: float | None
) -> None:
    """Another number of losses, or one that is not finite, is no small difference."""
    assert demo._largest_difference(expected, found) == largest


@pytest.mark.parametrize("cut", [0, 30, -1])
def test_a_cut_outside_of_the_run_is_refused(tmp_path: Path, cut: int) -> None:
    """The cut must leave steps on both sides."""
    with pytest.raises(ValueError, match="give one between 0 and 30"):
        run_resume_demo(interrupt_at=cut, ckpt_dir=tmp_path)


def test_a_second_process_that_fails_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the resumed half can't be run, the answer is 2 and the reason is said."""
    monkeypatch.setattr(demo.sys, "executable", "/bin/false")
    assert demo.main(["--output", str(tmp_path), "--steps", "4", "--cut", "2"]) == 2
    assert "could not be completed: the second process ended with 1" in capsys.readouterr().err
