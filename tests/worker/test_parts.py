"""The parts of a run: what can be one, and that each comes back bit for bit or not at all."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from outlast_worker.digest import first_difference, state_sha256
from outlast_worker.optimizers import parameter_names
from outlast_worker.parts import PartError, Parts
from outlast_worker.ptfile import load_pt, stream
from outlast_worker.typewalk import NotLoadable, loadable, original

S = torch.optim.lr_scheduler


def through(tree: Any) -> Any:
    return original(load_pt(b"".join(stream(loadable(tree)))))


def model(seed: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    ).to(dtype)


def train(parts: dict[str, Any], steps: int, seed: int) -> list[float]:
    rates = []
    inputs = torch.Generator().manual_seed(seed)
    dtype = next(parts["model"].parameters()).dtype
    for _ in range(steps):
        rates.append(float(parts["optimizer"].param_groups[0]["lr"]))
        parts["optimizer"].zero_grad()
        parts["model"](torch.randn(5, 4, generator=inputs).to(dtype)).square().mean().backward()
        parts["optimizer"].step()
        if "scheduler" in parts:
            parts["scheduler"].step()
    return rates


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01, dtype=torch.float64), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "two groups": lambda p: torch.optim.AdamW([{"params": list(p)[::2]}, {"params": []}], lr=0.01),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: S.LambdaLR(o, lambda n: 0.9**n),
    "step": lambda o: S.StepLR(o, 3, 0.5),
    "cosine": lambda o: S.CosineAnnealingLR(o, 12),
    "one cycle": lambda o: S.OneCycleLR(o, 0.1, 40),
    "warm-up and cosine": lambda o: S.SequentialLR(o, [S.LinearLR(o), S.CosineAnnealingLR(o, 9)], [4]),
    "cyclic": lambda o: S.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
}


def build(seed: int, optimizer: str = "adam", scheduler: str | None = None) -> dict[str, Any]:
    net = model(seed)
    opt = OPTIMIZERS[optimizer](net.parameters())
    parts = {"model": net, "optimizer": opt}
    if scheduler is not None:
        parts["scheduler"] = SCHEDULERS[scheduler](opt)
    return parts


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(optimizer: str) -> None:
    """Seven steps, saved, loaded into a fresh model and trained on, are the uninterrupted run."""
    one = build(1, optimizer)
    train(one, 7, 3)
    trees, kinds = Parts(one).capture()
    trees = through(trees)
    two = build(2, optimizer)
    train(two, 2, 9)
    Parts(two).restore(trees, kinds)
    assert first_difference(Parts(one).capture()[0], Parts(two).capture()[0]) is None
    train(one, 5, 4)
    train(two, 5, 4)
    assert state_sha256(Parts(one).capture()[0]) == state_sha256(Parts(two).capture()[0])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
def test_every_learning_rate_is_that_of_the_uninterrupted_run(scheduler: str) -> None:
    """After a restore the rate of the next and of every later step is what it would have been."""
    one = build(1, "momentum", scheduler)
    train(one, 5, 3)
    trees, kinds = Parts(one).capture()
    trees = through(trees)
    two = build(2, "momentum", scheduler)
    Parts(two).restore(trees, kinds)
    assert train(two, 8, 4) == train(one, 8, 4)


def test_the_saved_rate_wins_over_a_scheduler_that_sets_it() -> None:
    """A scheduler which sets the rate when it is loaded doesn't change what the optimizer had."""

    class Setting:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.optimizer.param_groups[0]["lr"] = 99.0

    parts = build(1)
    parts = {
        "optimizer": parts["optimizer"],
        "schedule": Setting(parts["optimizer"]),
        "model": parts["model"],
    }
    trees, kinds = Parts(parts).capture()
    trees = through(trees)
    Parts(parts).restore(trees, kinds)
    assert parts["optimizer"].param_groups[0]["lr"] == 0.01


def test_float32_moments_of_bfloat16_weights_keep_their_bits() -> None:
    """Optimizer state of another type than the parameter isn't cast, as torch's own loading does."""
    nets = [model(seed, torch.bfloat16) for seed in (1, 2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for parameter in nets[0].parameters():
        optimizers[0].state[parameter]["momentum_buffer"] = torch.randn(parameter.shape, dtype=torch.float32)
    one, two = ({"model": n, "optimizer": o} for n, o in zip(nets, optimizers, strict=True))
    trees, kinds = Parts(one).capture()
    trees = through(trees)
    Parts(two).restore(trees, kinds)
    assert first_difference(Parts(one).capture()[0], Parts(two).capture()[0]) is None


def test_weights_of_another_type_are_refused() -> None:
    """A checkpoint of float32 weights isn't silently rounded into a bfloat16 model."""
    trees, kinds = Parts({"model": model(1)}).capture()
    with pytest.raises(PartError, match=r"part 'model'.*float32.*became tensor bfloat16"):
        Parts({"model": model(1, torch.bfloat16)}).restore(through(trees), kinds)


def test_parameters_go_by_name() -> None:
    """Each number of an optimizer is mapped to the name that its model gives the parameter."""
    net, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    stray = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": head.parameters()}, {"params": [stray, *net.parameters()]}], lr=1)
    names = parameter_names(optimizer, {"model": net, "head": head})
    assert names == ["head.weight", "head.bias", None, "model.weight", "model.bias"]
    tied = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    assert parameter_names(torch.optim.SGD(tied.parameters()), {"m": tied}) == ["m.0.weight"]


def test_another_order_of_parameters_is_refused() -> None:
    """Parameters of equal shape given in another order would swap their moments, and are an error."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    trees, kinds = Parts({"model": net, "optimizer": torch.optim.Adam(net.parameters())}).capture()
    other = torch.optim.Adam(reversed(list(net.parameters())))
    with pytest.raises(
        PartError, match=r"parameter 0 is 'model.1.weight' in the script and 'model.0.weight'"
    ):
        Parts({"model": net, "optimizer": other}).restore(through(trees), kinds)


class _Plain(np.random.PCG64):
    """Pickled as numpy 1.26 does it: without the seed sequence."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (), self.state

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise TypeError("state must be a dict")
        self.state = state


GENERATORS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "PCG64": (np.random.default_rng, lambda g: (g.random(3).tolist(), g.integers(9), g.normal())),
    "PCG64DXSM": (lambda s: np.random.Generator(np.random.PCG64DXSM(s)), lambda g: g.random(3).tolist()),
    "MT19937": (lambda s: np.random.Generator(np.random.MT19937(s)), lambda g: g.random(3).tolist()),
    "Philox": (lambda s: np.random.Generator(np.random.Philox(s)), lambda g: g.random(3).tolist()),
    "SFC64": (lambda s: np.random.Generator(np.random.SFC64(s)), lambda g: g.random(3).tolist()),
    "half a word": (np.random.default_rng, lambda g: g.integers(0, 9, dtype=np.uint32)),
    "spawning": (np.random.default_rng, lambda g: [child.random() for child in g.spawn(2)]),
    "numpy 1.26": (
        lambda s: np.random.Generator(_Plain(s)),
        lambda g: [g.random(), *(child.random() for child in g.spawn(2))],
    ),
    "RandomState": (np.random.RandomState, lambda g: (g.randn(), g.rand())),
    "random.Random": (random.Random, lambda g: (g.gauss(0, 1), g.random(), g.randrange(99))),
    "torch.Generator": (
        lambda s: torch.Generator().manual_seed(s),
        lambda g: torch.randn(3, generator=g).tolist(),
    ),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_private_generator_goes_on_as_it_would_have(name: str) -> None:
    """After a restore a generator of another seed gives the draws that followed the capture."""
    make, draw = GENERATORS[name]
    one, two = make(1), make(2)
    draw(one)
    trees, kinds = Parts({"noise": one}).capture()
    trees = through(trees)
    expected = [draw(one) for _ in range(3)]
    draw(two)
    Parts({"noise": two}).restore(trees, kinds)
    assert [draw(two) for _ in range(3)] == expected


def test_a_generator_of_another_kind_is_refused() -> None:
    """A numpy generator's state isn't put into another bit generator or another kind of part."""
    trees, kinds = Parts({"noise": np.random.default_rng(1)}).capture()
    with pytest.raises(PartError, match="part 'noise': can't be restored"):
        Parts({"noise": np.random.Generator(np.random.SFC64(1))}).restore(through(trees), kinds)
    with pytest.raises(PartError, match=r"is of kind random.Random in the script and numpy.Generator in the"):
        Parts({"noise": random.Random(1)}).restore(through(trees), kinds)


def test_a_part_on_one_side_only_is_named() -> None:
    """A part that only the checkpoint or only the script has is an error, and nothing is restored."""
    one = build(1)
    trees, kinds = Parts(one).capture()
    trees = through(trees)
    two = build(2)
    before = state_sha256(Parts(two).capture()[0])
    with pytest.raises(PartError, match="part 'optimizer': is in the checkpoint but not in the script"):
        Parts({"model": two["model"]}).restore(trees, kinds)
    with pytest.raises(PartError, match="part 'ema': is in the script but not in the checkpoint"):
        Parts({**two, "ema": model(3)}).restore(trees, kinds)
    assert state_sha256(Parts(two).capture()[0]) == before


@pytest.mark.parametrize(
    "value", [3, "text", [1], object(), lambda: 1, random.SystemRandom(), torch.nn.Linear]
)
def test_what_has_no_state_cannot_be_a_part(value: Any) -> None:
    """A value without state_dict and load_state_dict is refused when it is registered, with the cure."""
    with pytest.raises(PartError, match=r"part 'thing': .*has no state_dict and load_state_dict"):
        Parts({"thing": value})


def test_none_is_no_part() -> None:
    """A part that is None is left out."""
    assert Parts({"model": model(1), "scheduler": None}).capture()[1] == {"model": "stateful"}


def test_a_part_that_fails_is_named() -> None:
    """Whatever a part raises when it is read or restored becomes an error with its name."""

    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise KeyError("inside")

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("inside")

    parts = Parts({"thing": Broken()})
    with pytest.raises(PartError, match=r"part 'thing': its state can't be read: KeyError: 'inside'"):
        parts.capture()
    with pytest.raises(PartError, match=r"part 'thing': can't be restored: KeyError: 'inside'"):
        parts.restore({"thing": {}}, {"thing": "stateful"})


def test_a_module_that_drops_state_is_found_out() -> None:
    """A module whose loading forgets something is an error, not a run that goes elsewhere."""

    class Forgetful(torch.nn.Linear):
        def load_state_dict(self, state_dict: Any, *rest: Any, **more: Any) -> Any:
            return None

    torch.manual_seed(1)
    trees, kinds = Parts({"model": Forgetful(2, 2)}).capture()
    with pytest.raises(PartError, match=r"is not what was saved after its restore: bias"):
        Parts({"model": Forgetful(2, 2)}).restore(through(trees), kinds)


def test_a_buffer_into_which_nothing_can_be_loaded_is_named_before_the_training() -> None:
    """A buffer made by expand is refused by its name; one that isn't saved, or whose module loads it itself, isn't."""

    class Table(torch.nn.Module):
        def __init__(self, *, persistent: bool = True) -> None:
            super().__init__()
            self.register_buffer("one", torch.ones(1, 3).expand(1, 3))
            self.register_buffer("table", torch.ones(1, 3).expand(2, 3), persistent=persistent)

    class Own(Table):
        def _load_from_state_dict(self, *_: Any) -> None:
            pass

    class Assigning(Table):
        def load_state_dict(self, state: Any, strict: bool = True, assign: bool = True) -> Any:
            return super().load_state_dict(state, strict, True)

    trees, kinds = Parts({"model": Table()}).capture()
    with pytest.raises(PartError, match="single memory location"):
        Parts({"model": Table()}).restore(through(trees), kinds)
    with pytest.raises(NotLoadable, match=r"model/1\.table: torch.Tensor: its elements share memory"):
        Parts({"model": torch.nn.Sequential(torch.nn.Linear(1, 1), Table())}).check()
    Parts({"model": torch.nn.ModuleList([Table(persistent=False), Own()])}).check()
    assigning = Assigning()
    Parts({"model": assigning}).check()
    Parts({"model": assigning}).restore(through(trees), kinds)


def test_shape_and_name_mismatches_are_refused() -> None:
    """A model of other layers or sizes is refused with its name."""
    trees, kinds = Parts({"model": torch.nn.Linear(2, 3)}).capture()
    for other in (torch.nn.Linear(2, 4), torch.nn.Sequential(torch.nn.Linear(2, 3))):
        with pytest.raises(PartError, match=r"part 'model': can't be restored"):
            Parts({"model": other}).restore(copy.deepcopy(trees), kinds)


def test_options_that_another_torch_has_not_saved_are_told_and_no_reason_to_refuse() -> None:
    """What an older torch saved of an optimizer and a scheduler is gone on with; of the same torch it is refused."""

    def made(seed: int) -> dict[str, Any]:
        net = model(seed)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        step = S.StepLR(optimizer, 3)
        return {"model": net, "optimizer": optimizer, "scheduler": S.SequentialLR(optimizer, [step], [])}

    before = made(1)
    train(before, 4, 1)
    trees, kinds = Parts(before).capture()
    trees = through(trees)
    for group in trees["optimizer"]["param_groups"]:
        del group["maximize"]  # as if torch had it since then
    del trees["scheduler"]["_schedulers"][0]["gamma"]
    with pytest.raises(PartError, match="only the second has it"):
        Parts(made(2)).restore(copy.deepcopy(trees), kinds)
    after = made(2)
    drift = Parts(after).restore(copy.deepcopy(trees), kinds, other_torch=True)
    assert sorted(drift) == [
        "optimizer: saved without maximize, which this version has",
        "scheduler: saved without gamma, which this version has",
    ]
    assert train(before, 4, 2) == train(after, 4, 2)
    assert first_difference(Parts(before).capture()[0], Parts(after).capture()[0]) is None


def test_scaler_and_averaged_model_are_parts() -> None:
    """A GradScaler and an averaged copy of the model are captured and restored like any other."""
    net = model(1)
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    trees, kinds = Parts({"ema": average, "scaler": scaler}).capture()
    trees = through(trees)
    fresh = torch.optim.swa_utils.AveragedModel(model(2))
    fresh_scaler = torch.amp.GradScaler("cpu")
    Parts({"ema": fresh, "scaler": fresh_scaler}).restore(trees, kinds)
    assert fresh.n_averaged == 1
    assert fresh_scaler.get_scale() == 512.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True}, {"foreach": True}], ids=str)
def test_optimizers_on_a_device_go_on_bit_for_bit(options: dict[str, bool]) -> None:
    """Capturable, fused and foreach AdamW on a CUDA device resume exactly, with a tensor as rate too."""
    runs = []
    for seed in (1, 2):
        net = model(seed).cuda()
        rate = torch.tensor(0.01, device="cuda") if options.get("capturable") else 0.01
        runs.append({"model": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=rate, **options)})

    def steps(parts: dict[str, Any], seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(4):
            parts["optimizer"].zero_grad()
            parts["model"](torch.randn(5, 4, generator=draw).cuda()).square().mean().backward()
            parts["optimizer"].step()

    steps(runs[0], 1)
    trees, kinds = Parts(runs[0]).capture()
    Parts(runs[1]).restore(through(trees), kinds)
    steps(runs[0], 2)
    steps(runs[1], 2)
    assert state_sha256(Parts(runs[0]).capture()[0]) == state_sha256(Parts(runs[1]).capture()[0])


def test_a_module_made_in_inference_mode_is_restored() -> None:
    """Torch changes its tensors there alone."""
    with torch.inference_mode():
        saved, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    trees, kinds = Parts({"model": saved}).capture()
    Parts({"model": other}).restore(through(trees), kinds)
    assert torch.equal(other.weight, saved.weight)
