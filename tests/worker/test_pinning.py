"""A buffer becomes memory that CUDA reaches by itself: the two calls of its runtime are made by hand here."""

from __future__ import annotations

import pytest
import torch

from outlast_worker import cuda
from outlast_worker.buffer import Buffers


class Runtime:
    """The two calls of CUDA's runtime that lock memory, and their answer."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.locked[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


class Selected:
    """Stands for ``torch.cuda.device``."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("code", [0, 1])
def test_a_buffer_is_locked_whole_when_it_is_made_and_let_go_with_it(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Where that succeeds a device reaches it, until it is gone; where not, it is a buffer like any other."""
    runtime = Runtime(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", Selected)
    buffers = Buffers()
    buffers.finish = lambda buffer: cuda._pin(buffer, 0)
    buffers.prepare(1 << 20)
    buffers.settled()
    found = buffers.of(1 << 20)
    assert found is not None
    assert found.pinned == (code == 0)
    assert runtime.locked == {found.address: 1 << 20}
    del found
    buffers._ready = None
    assert bool(runtime.locked) == bool(code)
    assert cuda.Cuda().pinning([torch.ones(2)]) is None
    assert cuda.Cuda().of(torch.ones(2)) is None
