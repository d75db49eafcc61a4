"""Capture and restore optimizers bit for bit, with the names of their parameters beside the numbers."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from outlast_worker.digest import NAMES


def parameter_names(
    optimizer: torch.optim.Optimizer, modules: Mapping[str, torch.nn.Module]
) -> list[str | None]:
    """The name of each parameter in the order in which the optimizer numbers them, as MODULE.NAME.

    None for one that belongs to none of the modules. One that is given twice has two numbers, and uses the first.
    """
    known = {
        id(parameter): f"{part}.{name}"
        # of two that share a parameter the first names it
        for part, module in reversed(list(modules.items()))
        for name, parameter in module.named_parameters()
    }
    return [known.get(id(parameter)) for parameter in _parameters(optimizer)]


def capture(optimizer: torch.optim.Optimizer, modules: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """The optimizer's own state dict, and the names."""
    tree = dict(optimizer.state_dict())
    if {"state", "param_groups"} <= tree.keys():  # those of some wrappers have another form
        tree[NAMES] = parameter_names(optimizer, modules)
    return tree


def restore(
    optimizer: torch.optim.Optimizer, tree: Mapping[str, Any], modules: Mapping[str, torch.nn.Module]
) -> None:
    """Load what ``capture`` gave, refusing other parameters or another order of them."""
    saved = {key: value for key, value in tree.items() if key != NAMES}
    if NAMES in tree:
        _same_parameters(tree[NAMES], parameter_names(optimizer, modules))
        saved["param_groups"] = _on_their_devices(saved["param_groups"], optimizer.param_groups)
        saved["state"] = {key: _castable(value) for key, value in saved["state"].items()}
    optimizer.load_state_dict(saved)
    if NAMES in tree:
        _undo_casts(optimizer, tree)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _same_parameters(saved: list[str | None], live: list[str | None]) -> None:
    """Moments go by number: another order of parameters of one shape would swap them unnoticed."""
    if len(saved) != len(live):
        raise ValueError(f"it has {len(live)} parameters in the script and {len(saved)} in the checkpoint")
    for number, (before, now) in enumerate(zip(saved, live, strict=True)):
        if before is not None and now is not None and before != now:
            raise ValueError(
                f"parameter {number} is {now!r} in the script and {before!r} in the checkpoint; "
                "give the parameters in the same order"
            )


def _on_their_devices(saved: list[dict[str, Any]], live: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Options that are tensors (a learning rate, say) on the script's device, not the CPU."""
    if len(saved) != len(live):
        return saved  # torch says it better
    return [
        {
            key: value.to(options[key].device)
            if isinstance(value, torch.Tensor) and isinstance(options.get(key), torch.Tensor)
            else value
            for key, value in group.items()
        }
        for group, options in zip(saved, live, strict=True)
    ]


def _castable(value: Any) -> Any:
    """Without what torch makes something else of, or fails at: it builds all that can be iterated over anew."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        return {key: _castable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_castable, value))
    return None if isinstance(value, Iterable) else value


def _undo_casts(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Torch casts floating state to the parameter's type, which loses bits of float32 moments of bfloat16."""
    numbers = itertools.chain.from_iterable(group["params"] for group in saved["param_groups"])
    parameters = dict(zip(numbers, _parameters(optimizer), strict=True))
    state: dict[Any, Any] = optimizer.state
    for number, entry in saved["state"].items():
        parameter = parameters.get(number)
        key = number if parameter is None else parameter  # some keep what is of no parameter under other keys
        device = torch.device("cpu") if parameter is None else parameter.device
        state[key] = _as_saved(entry, state.get(key), device)


def _as_saved(saved: Any, now: Any, device: torch.device) -> Any:
    """What torch has made of a value where that is right, and else the value, on the device where torch puts it."""
    kind = type(saved)
    if isinstance(saved, torch.Tensor):
        if not isinstance(now, torch.Tensor):
            return saved.to(device)
        return now if now.dtype == saved.dtype else saved.to(now.device)
    if isinstance(saved, dict):
        made = now if isinstance(now, dict) else {}
        entries = {key: _as_saved(item, made.get(key), device) for key, item in saved.items()}
        if kind is not dict:
            return _filled(saved, entries)
        if kind is type(now):
            now.update(entries)  # the optimizer may hold on to it
            return now
        return entries
    if kind in (list, tuple, collections.deque):
        pairs = itertools.zip_longest(saved, now if kind is type(now) else ())
        items = [_as_saved(item, other, device) for item, other in itertools.islice(pairs, len(saved))]
        return collections.deque(items, saved.maxlen) if kind is collections.deque else kind(items)
    return saved


def _filled(like: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the same kind, with these entries."""
    result = like.copy()
    dict.update(result, entries)  # a Counter's own would add
    return result
