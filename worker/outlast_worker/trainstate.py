"""What a training script of its own making counts, and its whole state as one tree, and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from outlast_jobs.contract import Schema
from outlast_jobs.errors import Corrupt
from outlast_worker.digest import NAMES, OPTIMIZER
from outlast_worker.optimizers import parameter_names
from outlast_worker.parts import PartError, Parts
from outlast_worker.proof_files import file_proof
from outlast_worker.rng import capture_rng_state, restore_rng_state

COUNTERS = ("step", "epoch", "batch_in_epoch")


@dataclass
class TrainState:
    """Where a run stands: what was done, the losses, and the script's own plain values in ``extra``.

    ``batch_in_epoch`` counts the batches of the epoch that were trained on, not those that were fetched.
    ``losses`` holds one for each step, the newest last; it may be cut at the front.
    """

    step: int = 0
    epoch: int = 0
    batch_in_epoch: int = 0
    losses: list[float] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    rng: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """After a load, the random streams as they were saved: for a restore after the last thing that draws."""


def gather(
    model: Any, optimizer: Any, scheduler: Any, state: TrainState, more: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The whole state as a tree; the tensors in it are the live ones."""
    _check_counters({name: getattr(state, name) for name in COUNTERS}, ValueError)
    trees, kinds = Parts(named_parts(model, optimizer, scheduler, more)).capture()
    first = state.step - len(state.losses) + 1
    return {
        "schema": Schema.META,
        "parts": trees,
        "kinds": kinds,
        "counters": {name: getattr(state, name) for name in COUNTERS},
        "losses": [[first + n, float(loss)] for n, loss in enumerate(state.losses)],
        "rng": capture_rng_state(),
        "extra": state.extra,
    }


def restore(
    tree: Mapping[str, Any],
    model: Any,
    optimizer: Any,
    scheduler: Any,
    more: Mapping[str, Any] | None,
    *,
    other_torch: bool,
    restore_rng: bool,
    allow_rng_loss: bool,
) -> TrainState:
    """Bring everything to the saved state, the random streams last. Whatever does not fit is a PartError.

    That is found before anything is changed, as far as names, shapes and types can tell. ``other_torch`` is as
    for `Parts.restore`; what was not saved then is told as a warning.
    """
    named = named_parts(model, optimizer, scheduler, more)
    proof = file_proof()  # None but under `outlast prove`
    if proof is not None:
        tree = proof.leave_out(tree, named)
    state = _train_state(tree)
    trees, drift = _completed(tree["parts"], tree["kinds"], named, other_torch)
    _refuse_misfits(trees, named)
    drift += Parts(named).restore(trees, tree["kinds"], other_torch=other_torch)
    if drift:
        warnings.warn("; ".join(drift), RuntimeWarning, stacklevel=3)
    if restore_rng:
        restore_rng_state(tree["rng"], allow_loss=allow_rng_loss)
    if proof is not None:
        proof.loaded(state, named, with_rng=restore_rng)
    return state


def _train_state(tree: Mapping[str, Any]) -> TrainState:
    """The counters and losses of a tree that may be anybody's."""
    counters, losses, extra = tree["counters"], tree["losses"], tree["extra"]
    _check_counters(counters, Corrupt)
    try:
        values = [float(loss) for _, loss in losses]
    except (TypeError, ValueError):
        raise Corrupt("the checkpoint's losses are no list of step and loss") from None
    return TrainState(
        step=counters["step"],
        epoch=counters["epoch"],
        batch_in_epoch=counters["batch_in_epoch"],
        losses=values,
        extra=dict(extra),
        rng=tree["rng"],
    )


def _check_counters(counters: Mapping[str, Any], error: type[ValueError]) -> None:
    for name in COUNTERS:
        value = counters.get(name)
        if type(value) is not int or value < 0:
            raise error(f"the counter {name!r} is {value!r}, not a whole number from 0")


def named_parts(model: Any, optimizer: Any, scheduler: Any, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that was given, by name."""
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for name, value in (more or {}).items():
        if name in named:
            raise ValueError(f"the part {name!r} can't be given twice; call it otherwise")
        named[name] = value
    return {name: value for name, value in named.items() if value is not None}


def _completed(
    trees: Mapping[str, Any], kinds: Mapping[str, str], named: Mapping[str, Any], other_torch: bool
) -> tuple[dict[str, Any], list[str]]:
    """What older files and other versions of torch did not record of an optimizer, taken from the script's.

    That is the order of the parameters, and options that another torch did not have, which are told as well.
    """
    modules = {name: value for name, value in named.items() if isinstance(value, torch.nn.Module)}
    result, told = dict(trees), list[str]()
    for name, optimizer in named.items():
        tree = trees.get(name)
        if kinds.get(name) != OPTIMIZER or not isinstance(tree, dict) or "param_groups" not in tree:
            continue
        names = tree[NAMES] if NAMES in tree else parameter_names(optimizer, modules)
        groups, live_groups = tree["param_groups"], optimizer.param_groups
        if other_torch and len(groups) == len(live_groups):
            more = [live.keys() - saved.keys() for saved, live in zip(groups, live_groups, strict=True)]
            if missing := sorted(set().union(*more)):
                told.append(f"{name}: saved without {', '.join(missing)}, which the script's has")
            groups = [{**live, **saved} for saved, live in zip(groups, live_groups, strict=True)]
        result[name] = {**tree, "param_groups": groups, NAMES: names}
    return result, told


def _refuse_misfits(trees: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    for name, value in named.items():
        tree = trees.get(name)
        if isinstance(value, torch.nn.Module) and isinstance(tree, dict):
            _refuse_misfit_module(name, tree, value.state_dict())
        if isinstance(value, torch.optim.Optimizer) and isinstance(tree, dict):
            _refuse_misfit_optimizer(name, tree, value)


def _refuse_misfit_module(part: str, saved: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    for key in live.keys() - saved.keys():
        raise PartError(part, f"{key!r} is in the script but not in the checkpoint")
    for key in saved.keys() - live.keys():
        raise PartError(part, f"{key!r} is in the checkpoint but not in the script")
    for key, now in live.items():
        before = saved[key]
        if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
            old, new = _looks(before), _looks(now)
            if old != new:
                raise PartError(part, f"{key!r} is {new} in the script and {old} in the checkpoint")


def _looks(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _refuse_misfit_optimizer(part: str, saved: Mapping[str, Any], live: torch.optim.Optimizer) -> None:
    try:
        before = [len(group["params"]) for group in saved["param_groups"]]
    except (KeyError, TypeError):
        return  # of another form than torch's own: its own load says what is wrong
    now = [len(group["params"]) for group in live.param_groups]
    if before != now:
        raise PartError(
            part, f"has groups of {now} parameters in the script and of {before} in the checkpoint"
        )
    # what a wrapper has in its defaults alone, or has no defaults, saves and needs no more than its groups
    for group, own in zip(saved["param_groups"], live.param_groups, strict=True):
        if missing := sorted(getattr(live, "defaults", {}).keys() & own.keys() - group.keys()):
            raise PartError(
                part,
                f"the checkpoint has no {missing[0]!r}, which {type(live).__name__} needs: another class has saved it",
            )
