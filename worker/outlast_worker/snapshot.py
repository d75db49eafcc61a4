"""A copy of a captured state that later training, or weights swapped in for an evaluation, can't change."""

from __future__ import annotations

import copy
from typing import Any

import torch


def clone(tree: Any) -> Any:
    """Copy a tree of plain values and tensors; tensors of a device are copied to the host.

    Tensors that are the same in memory stay one, so that tied weights are neither copied nor stored twice.
    """
    return _clone(tree, {})


def has_nan(tree: Any) -> bool:
    """Whether a floating tensor in the tree holds a NaN. Infinities are legal: masks are made of them."""
    if isinstance(tree, torch.Tensor):
        return _tensor_has_nan(tree)
    if isinstance(tree, dict):
        return any(has_nan(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return any(has_nan(value) for value in tree)
    return False


def _clone(tree: Any, seen: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        return _clone_tensor(tree, seen)
    if type(tree) is dict:
        return {key: _clone(value, seen) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_clone(value, seen) for value in tree)
    if isinstance(tree, dict):  # OrderedDict and its kind, with the attributes that state_dict hangs on them
        copied = copy.copy(tree)
        for key, value in tree.items():
            copied[key] = _clone(value, seen)
        return copied
    return copy.deepcopy(tree)


def _clone_tensor(tensor: torch.Tensor, seen: dict[tuple[Any, ...], torch.Tensor]) -> torch.Tensor:
    found = seen.get(key := _place(tensor))
    if found is None:
        source = tensor.detach()
        found = source.clone() if source.device.type == "cpu" else source.to("cpu", copy=True)
        seen[key] = found
    return found


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What makes two tensors the same in memory; an empty or odd one is only the same as itself."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _tensor_has_nan(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() == 0:
        return False
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        # The least value carries a NaN through, and unlike isnan it allocates nothing of the tensor's size.
        return bool(torch.isnan(tensor.detach().amin()))
    return bool(torch.isnan(tensor.detach().float()).any())
