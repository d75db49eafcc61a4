"""Find a NaN in bytes that go by: by one thread, while they are in the processor's cache."""

from __future__ import annotations

import numpy as np
import torch

_PLAIN = {torch.float32: np.float32, torch.float64: np.float64}
_ABOVE = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""The bits of infinity: of 16 bits without the sign, all above are NaN (IEEE 754, and bfloat16 alike)."""


def holds_nan(data: memoryview, dtype: torch.dtype) -> bool:
    """Whether a number of this floating type in ``data``, a multiple of its size, is a NaN."""
    if not data.nbytes:
        return False
    if dtype in _PLAIN:
        # the least value carries a NaN through; torch would wake its threads, which the training is using
        return bool(np.isnan(np.frombuffer(data, _PLAIN[dtype]).min()))
    if dtype in _ABOVE:
        return bool((np.frombuffer(data, np.uint16) & 0x7FFF).max() > _ABOVE[dtype])
    return bool(torch.isnan(torch.frombuffer(data, dtype=dtype).float()).any())
