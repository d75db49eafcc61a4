"""Capture and restore optimizers bit for bit, with the names of their parameters beside the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from outlast_worker.digest import NAMES


def parameter_names(
    optimizer: torch.optim.Optimizer, modules: Mapping[str, torch.nn.Module]
) -> list[str | None]:
    """The name of each parameter in the order in which the optimizer numbers them, as MODULE.NAME.

    None for one that belongs to none of the modules.
    """
    known = {
        id(parameter): f"{part}.{name}"
        for part, module in reversed(
            list(modules.items())
        )  # of two that share a parameter the first names it
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
    optimizer.load_state_dict(saved)
    if NAMES in tree:
        _undo_casts(optimizer, saved["state"])


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    unique = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    return list(unique.values())


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


def _undo_casts(optimizer: torch.optim.Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Torch casts floating state to the parameter's type, which loses bits of float32 moments of bfloat16."""
    parameters = _parameters(optimizer)
    for number, entries in saved.items():
        live = optimizer.state[parameters[number]]
        for key, value in entries.items():
            now = live.get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                live[key] = value.to(now.device)
