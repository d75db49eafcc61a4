"""A copy of a captured state that later training, or weights swapped in for an evaluation, can't change."""

from __future__ import annotations

from typing import Any

import torch

from outlast_worker.shards import put_back, take_out
from outlast_worker.typewalk import loadable, original


def clone(tree: Any) -> Any:
    """Copy a tree as a save and a restore would give it back; tensors of a device are copied to the host.

    Tensors that share memory share it in the copy. NotLoadable where it could not be saved.
    """
    taken = take_out(loadable(tree))
    return original(put_back(taken.skeleton, [taken.content(n, own=True) for n in range(len(taken.shards))]))


def has_nan(tree: Any) -> bool:
    """Whether a floating tensor in the tree holds a NaN. Infinities are legal: masks are made of them."""
    if isinstance(tree, torch.Tensor):
        return _tensor_has_nan(tree)
    if isinstance(tree, dict):
        return any(has_nan(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return any(has_nan(value) for value in tree)
    return False


def _tensor_has_nan(tensor: torch.Tensor) -> bool:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() == 0:
        return False
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        # The least value carries a NaN through, and unlike isnan it allocates nothing of the tensor's size.
        return bool(torch.isnan(tensor.detach().amin()))
    return bool(torch.isnan(tensor.detach().float()).any())
