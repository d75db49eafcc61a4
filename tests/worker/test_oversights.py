"""What a script trains with and a resume could not go on with: told while there is still time, and only then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.listening import Listener
from torch import nn
from torch.nn.utils import prune

from outlast_worker import oversights
from outlast_worker.feed import Feed
from outlast_worker.parts import PartError, Parts
from outlast_worker.state import TrainingState

SCRIPT = Path(__file__).parent / "scripts" / "overlooking.py"
GATHERED = "gradients were gathered before the boundary of step"
LOST = "that was not passed to the Checkpointer"
OTHERWISE = "at step {} than at the save before"


class Watched:
    """A training of `net` by hand, with what is told of it."""

    def __init__(self, said: list[str], **parts: Any) -> None:
        self.said = said
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.adam = torch.optim.Adam(self.net.parameters())
        self.state = TrainingState(Parts({"model": self.net, "optimizer": self.adam, **parts}), Feed(None))
        self.state.watch(self.state.capture()["parts"])

    def backward(self) -> None:
        self.net(torch.randn(4, 2)).square().mean().backward()  # type: ignore[no-untyped-call]

    def boundary(self) -> None:
        self.state.step += 1
        self.state.trained()

    def train(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """An update, its boundary and a save."""
        optimizer = optimizer or self.adam
        optimizer.zero_grad()
        self.backward()
        optimizer.step()
        self.boundary()
        self.state.capture()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    said: list[str] = []
    monkeypatch.setattr(oversights, "say", said.append)
    made: list[Watched] = []

    def make(**parts: Any) -> Watched:
        said.clear()
        made.append(Watched(said, **parts))
        return made[-1]

    yield make
    for each in made:
        each.state.close()


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("window", [2, 4])
def test_a_boundary_within_an_accumulation_is_told_once(
    watched: Callable[..., Watched], to_none: bool, window: int
) -> None:
    """Gradients that wait for more at a boundary would be lost by a resume: said at the first, with the cure."""
    run = watched()
    for number in range(1, 4 * window):
        run.backward()
        if number % window == 0:
            run.adam.step()
            run.adam.zero_grad(set_to_none=to_none)
        run.boundary()
    assert len(run.said) == 1
    assert run.said[0].startswith(f"{GATHERED} 1 ")
    assert "only after optimizer.step()" in run.said[0]


@pytest.mark.parametrize("zero", ["before", "none", "zeros"])
def test_boundaries_without_an_update_are_no_news_where_nothing_was_gathered(
    watched: Callable[..., Watched], zero: str
) -> None:
    """A script may call it each step of its environment and update now and then, however it clears gradients."""
    run = watched()
    for number in range(12):
        if number % 3 == 0:
            if zero == "before":
                run.adam.zero_grad()
            run.backward()
            run.adam.step()
            if zero != "before":
                run.adam.zero_grad(set_to_none=zero == "none")
        run.boundary()
    assert run.said == []


def test_an_update_that_a_scaler_skips_is_no_news(watched: Callable[..., Watched]) -> None:
    """With a GradScaler among the parts, a boundary without a step is one."""
    run = watched(scaler=torch.amp.GradScaler("cpu"))
    run.backward()
    run.boundary()
    assert run.said == []


@pytest.mark.parametrize("clips", [False, True])
def test_an_update_that_the_script_skips_is_no_news(watched: Callable[..., Watched], clips: bool) -> None:
    """Gradients that are thrown away, as those of a step whose norm is not finite, wait for nothing."""
    run = watched()
    for number in range(9):
        run.adam.zero_grad()
        run.backward()
        if clips:
            nn.utils.clip_grad_norm_(run.net.parameters(), 0.1)
        if number % 3:
            run.adam.step()
        run.boundary()
    assert run.said == []


def test_an_optimizer_that_was_not_passed_is_told_once(watched: Callable[..., Watched]) -> None:
    """One that is made anew in mid-training has a state that nobody saves: said at the next save, by its class."""
    run = watched()
    run.train()
    anew = torch.optim.AdamW(run.net.parameters())
    for _ in range(3):
        run.train(anew)
    assert len(run.said) == 1
    assert "(AdamW)" in run.said[0]
    assert LOST in run.said[0]


def test_a_model_that_was_replaced_as_a_whole_is_told(watched: Callable[..., Watched]) -> None:
    """Where none that was passed steps any longer, one that does is told, whatever it trains."""
    run = watched()
    run.net = nn.Sequential(nn.Linear(2, 1))
    run.train(torch.optim.Adam(run.net.parameters()))
    assert len(run.said) == 1
    assert LOST in run.said[0]


def test_optimizers_that_lose_nothing_are_no_news(watched: Callable[..., Watched]) -> None:
    """One inside a part that gives its state, one without a state, and one of a probe beside the training."""

    class Wrapper:
        def __init__(self) -> None:
            self.inner: torch.optim.Optimizer | None = None

        def state_dict(self) -> dict[str, Any]:
            return {"inner": self.inner and self.inner.state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    wrapper = Wrapper()
    run = watched(wrapper=wrapper)
    wrapper.inner = torch.optim.Adam(run.net.parameters())
    plain = torch.optim.SGD(run.net.parameters(), lr=0.1)
    probe = nn.Linear(2, 1)
    beside = torch.optim.Adam(probe.parameters())
    for _ in range(2):
        probe(torch.ones(2)).sum().backward()
        beside.step()
        wrapper.inner.step()
        plain.step()
        run.train()
    assert run.said == []


@pytest.mark.parametrize("state", [torch.eye(2).to_sparse(), {"odd": object()}, "text"])
def test_no_state_of_an_optimizer_costs_a_save(watched: Callable[..., Watched], state: Any) -> None:
    """One that was not passed may keep what it likes, and nothing fails of it."""
    run = watched()
    plain = torch.optim.SGD(run.net.parameters(), lr=0.1)
    plain.state[run.net[0].weight] = state
    for _ in range(2):
        plain.step()
        run.train()
    assert run.said == []


def _unfreeze(run: Watched) -> None:
    run.adam.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def _replace(run: Watched) -> None:
    run.net[2] = nn.Linear(3, 5)


def _prune(run: Watched) -> None:
    prune.l1_unstructured(run.net[0], "weight", 0.5)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("change", "part", "what"),
    [
        (_unfreeze, "optimizer", "parameter groups"),
        (_replace, "model", "tensors"),
        (_prune, "model", "tensors"),
    ],
)
def test_what_is_made_otherwise_in_training_is_told_and_refused_with_the_cure(
    watched: Callable[..., Watched], change: Callable[[Watched], None], part: str, what: str
) -> None:
    """Groups added, layers replaced: said at the next save once; a script that begins as before is told how to go on,
    and one that makes them again before the restore does."""
    run = watched()
    run.train()
    assert run.said == []
    change(run)
    for _ in range(2):
        run.train()
    assert len(run.said) == 1
    assert run.said[0].startswith(f"{part} has other {what}")
    assert OTHERWISE.format(2) in run.said[0]
    saved, kinds = run.state.parts.capture()
    other = watched()
    with pytest.raises(PartError, match="is made so again before the restore"):
        other.state.parts.restore(saved, kinds)
    third = watched()
    change(third)
    third.state.parts.restore(saved, kinds)


def test_weights_that_become_of_another_type_are_told(watched: Callable[..., Watched]) -> None:
    """A model that is cast in mid-training is refused at the resume, and told at the save before."""
    run = watched()
    run.train()
    run.net.double()
    run.boundary()
    saved = run.state.capture()
    assert len(run.said) == 1
    assert run.said[0].startswith("model has other tensors")
    with pytest.raises(PartError):
        watched().state.parts.restore(saved["parts"], saved["kinds"])


def test_flags_that_the_training_changes_are_told(watched: Callable[..., Watched]) -> None:
    """Weights that thaw, and a norm that freezes, are not in the state: each is said once."""
    run = watched()
    for change in (
        lambda: run.net[0].requires_grad_(False),
        lambda: run.net[1].eval(),
        lambda: None,
    ):
        run.train()
        change()
    run.train()
    assert len(run.said) == 2
    assert f"frozen parameters {OTHERWISE.format(2)}" in run.said[0]
    assert f"modules in eval mode {OTHERWISE.format(3)}" in run.said[1]


def test_a_layer_that_begins_anew_is_no_news(watched: Callable[..., Watched]) -> None:
    """One of the same shapes in the place of another goes back into what the script makes at its start."""
    run = watched()
    run.net[2].requires_grad_(False)
    run.train()
    run.said.clear()
    run.net[2] = nn.Linear(3, 1)
    gc.collect()
    run.train()
    assert run.said == []


def test_a_model_that_is_in_eval_mode_as_a_whole_is_no_news(watched: Callable[..., Watched]) -> None:
    """A script may evaluate before a boundary, and set the model to train after it."""
    run = watched()
    for training in (True, False, True, False):
        run.net.train(training)
        run.train()
    assert run.said == []


def test_each_is_said_in_the_log_of_a_training(run: Listener) -> None:
    """A script that does all three goes on, and its attempt's log has a line for each."""
    code, output = run.through(OUTLAST_SAVE_EVERY_STEPS="4")
    assert code == 0, output
    assert [output.count(words) for words in (GATHERED, LOST, "than at the save before")] == [1, 1, 1], output


class Mean(nn.Module):
    """A metric as torchmetrics makes them: its sums are no buffers, and in no state unless that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[torch.Tensor] = []

    def update(self, value: torch.Tensor) -> None:
        self.sums.append(value)


def test_a_metric_that_saves_nothing_is_told_once(watched: Callable[..., Watched]) -> None:
    """A part that holds tensors and whose state is empty was passed to be saved, and is not; one with none is fine."""
    metric = Mean()
    training = watched(metric=metric, loss=nn.MSELoss())
    training.train()
    assert training.said == []
    for _ in range(2):
        metric.update(torch.ones(1))
        training.train()
    assert [line[:29] for line in training.said] == ["nothing of metric is saved: i"]
