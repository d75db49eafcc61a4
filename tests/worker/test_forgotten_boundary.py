"""What is told to whoever calls the boundary too seldom, or counts its steps otherwise."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from outlast_worker import Checkpointer, batches
from outlast_worker.feed import UNCOUNTED
from outlast_worker.parts import PartError, Parts
from outlast_worker.session import RestoreNotHonoured


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_RUN", raising=False)


def _made() -> Checkpointer:
    return Checkpointer(model=nn.Linear(1, 1), data=batches(TensorDataset(torch.zeros(8, 1)), 4))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_forgotten_boundary_is_told_once(accumulate: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches without a boundary are told when they are too many for one update, with the cure, and only once."""
    with _made() as ckpt:
        drawn = ckpt.steps(total=10, accumulate=accumulate)
        for _ in itertools.islice(drawn, UNCOUNTED - 1):
            pass
        assert capsys.readouterr().err == ""
        for _ in itertools.islice(drawn, 2 * UNCOUNTED):
            pass
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(
        f"outlast: {UNCOUNTED * accumulate} batches were handed out since the last boundary"
    )
    assert "call ckpt.step() after each update" in said[0]


def test_a_boundary_after_each_update_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    """However many batches a run draws, and several for an update, nothing is said of those with boundaries."""
    with _made() as ckpt:
        for number, _ in enumerate(ckpt.steps(total=UNCOUNTED), 1):
            if number % 3 == 0:
                ckpt.step()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_that_are_drawn_ahead_are_told_once(
    accumulate: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that has the next batch ready before its update is done loses it in a restart: said, with the cure."""
    with _made() as ckpt:
        drawn = ckpt.steps(total=40, accumulate=accumulate)
        next(drawn)
        for _ in drawn:
            ckpt.step()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert (
        f"the first step drew {2 * accumulate} batches, and each of the next 8 drew {accumulate}" in said[0]
    )


def test_a_script_that_skips_its_first_batch_is_not_said_to_draw_ahead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By their number batches that are skipped are no others: what is said leaves that open."""
    with _made() as ckpt:
        for number, _ in enumerate(ckpt.steps(total=40)):
            if number > 0:
                ckpt.step()
    assert "the next 8 drew 1: unless one was skipped, " in capsys.readouterr().err


def test_a_loader_that_is_iterated_by_hand_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A DataLoader is rewrapped: whoever trains on the one that was passed is told at the first boundary, once."""
    loader = DataLoader(TensorDataset(torch.zeros(8, 1)), 4, shuffle=True)
    with Checkpointer(model=nn.Linear(1, 1), data=loader) as ckpt:
        for _ in loader:
            ckpt.step()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "draw from ckpt.steps(), or iterate over batches(…) itself" in said[0]


def test_batches_that_are_iterated_by_hand_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    """What has a state may be iterated over by the script, several updates may use one batch, and epochs be short."""
    for size in (8, 4):
        data = batches(TensorDataset(torch.zeros(size, 1)), 4)
        with Checkpointer(model=nn.Linear(1, 1), data=data) as ckpt:
            for _ in range(2):
                for _ in data:
                    ckpt.step()
                    ckpt.step()
        with Checkpointer(
            model=nn.Linear(1, 1), data=batches(TensorDataset(torch.zeros(size, 1)), 4)
        ) as ckpt:
            for _ in ckpt.steps(total=5):
                ckpt.step()
    assert capsys.readouterr().err == ""


def test_a_count_counts_this_update_too() -> None:
    """The step that a script gives is the number of updates done; where nothing was restored none is blamed."""
    with _made() as ckpt:
        ckpt.step(step=ckpt.step_count + 1)
        ckpt.step(step=ckpt.step_count + 1)
        with pytest.raises(RestoreNotHonoured) as told:
            ckpt.step(step=ckpt.step_count)
    assert str(told.value) == (
        "the script calls this step 2, and it is step 3; count on from ckpt.step_count, this update included"
    )


def test_an_optimizer_of_another_class_is_asked_about() -> None:
    """A state that another optimizer saved is refused, and the class is named as what may be wrong."""
    model = nn.Linear(1, 1)
    saved, kinds = Parts({"model": model, "optimizer": torch.optim.AdamW(model.parameters())}).capture()
    with pytest.raises(PartError, match="is this SGD of the class that was saved"):
        Parts({"model": model, "optimizer": torch.optim.SGD(model.parameters())}).restore(saved, kinds)
