"""NaNs found by their bits are those that torch finds."""

from __future__ import annotations

import struct

import pytest
import torch

from outlast_jobs.nans import KINDS, has_nan

FLOATS = [dtype for name in sorted(KINDS) if (dtype := getattr(torch, name, None)) is not None]


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype.itemsize <= 2], ids=str)
def test_every_number_of_a_small_format_is_told_as_torch_tells_it(dtype: torch.dtype) -> None:
    """Each bit pattern of eight or sixteen bits: NaN here where it is one there, and nowhere else."""
    count = 1 << (8 * dtype.itemsize)
    whole = torch.arange(count, dtype=torch.int32).to(torch.int16 if dtype.itemsize == 2 else torch.uint8)
    nan = torch.isnan(whole.view(dtype).float()).tolist()
    data = memoryview(whole.numpy()).cast("B")
    kind = str(dtype).removeprefix("torch.")
    size = dtype.itemsize
    found = [has_nan(data[at * size : at * size + size], kind) for at in range(count)]
    assert found == nan
    assert any(nan)


@pytest.mark.parametrize(("kind", "code"), [("float32", "<f"), ("float64", "<d")])
def test_a_single_nan_anywhere_is_found(kind: str, code: str) -> None:
    """The least and the largest NaN of either sign, at any place among numbers and infinities."""
    size = struct.calcsize(code)
    mantissa = {"float32": 23, "float64": 52}[kind]
    infinity = ((1 << (8 * size - 1)) - 1) >> mantissa << mantissa
    largest = infinity - 1  # the greatest number
    numbers = [0, 1, largest, infinity, infinity | 1 << (8 * size - 1)]
    length = (2 << 20) // size
    data = bytearray(b"".join(n.to_bytes(size, "little") for n in numbers) * (length // len(numbers)))
    assert not has_nan(memoryview(data), kind)
    for nan in (infinity + 1, (1 << (8 * size - 1)) - 1, (1 << 8 * size) - 1):
        for at in (0, len(data) // size // 2 * size, len(data) - size):
            kept = data[at : at + size]
            data[at : at + size] = nan.to_bytes(size, "little")
            assert has_nan(memoryview(data), kind)
            data[at : at + size] = kept
