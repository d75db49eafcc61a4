"""What a way to save has to offer to be measured, and the limits: no save at all, a copy, a write."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

LOOK = 0.005
"""Seconds between two looks for the end of a save that tells nobody: more of them would take from the save itself."""


class Contender(ABC):
    """One way. ``save`` returns when the training may go on; the future's result comes when all is on disk.

    What a way has to wait for before the next update, it waits for in a hook of the optimizer's.
    """

    warm = 2
    """Saves before the first that is measured: memory is fresh and processes are started in them."""
    leaves = False
    """Whether the training ends with a save of this kind."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.pool = ThreadPoolExecutor(1)

    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        """All that is large in it."""
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.detach() for t in (*self.model.parameters(), *moments) if isinstance(t, torch.Tensor)]

    def place(self, step: int) -> Path:
        """Where the save of a step goes: a new place each time."""
        return self.folder / f"saved-{step}"

    def tidy(self, step: int) -> None:
        """Before the save of a step, outside of what is measured: what it replaces goes away."""
        _remove(self.place(step - 2))

    @abstractmethod
    def save(self, step: int) -> Future[None]: ...

    def boundary(self) -> None:
        """What every step of the training ends with."""
        return

    def processes(self) -> list[int]:
        """All that take memory for it."""
        return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]

    def close(self) -> None:
        """Leave in order."""
        self.pool.shutdown()


def done() -> Future[None]:
    """Of a save that is on disk when it returns."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def sync(path: Path) -> None:
    """Nobody's save is on disk before its bytes are: those who don't sync are synced."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Nothing(Contender):
    """No save: what the measuring itself finds where there is nothing to find."""

    def save(self, step: int) -> Future[None]:
        return done()


class Memcpy(Contender):
    """The same bytes, copied into memory that is there already: what no copy can be faster than."""

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        self.copies: list[torch.Tensor] = []

    def save(self, step: int) -> Future[None]:
        if not self.copies:
            self.copies = [t.clone() for t in self.tensors()]
        for copied, tensor in zip(self.copies, self.tensors(), strict=True):
            copied.copy_(tensor)
        return done()


class CopyAndHash(Memcpy):
    """The same, and sha256 of the copy in a thread: what no digest made beside the training can be sooner than."""

    def save(self, step: int) -> Future[None]:
        super().save(step)

        def digest() -> None:
            made = hashlib.sha256()
            for copied in self.copies:
                made.update(copied.view(torch.uint8).numpy() if copied.dim() else copied.numpy())

        return self.pool.submit(digest)


class RawWrite(Contender):
    """The same bytes from memory to a new file, buffered, and one fsync: what no save can be sooner durable than."""

    direct = False

    def save(self, step: int) -> Future[None]:
        size = sum(t.nbytes for t in self.tensors())
        size -= size % mmap.PAGESIZE
        if not hasattr(self, "memory"):
            self.memory = mmap.mmap(-1, size)
            self.memory.write(os.urandom(1 << 20) * (size >> 20))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if self.direct else 0)
        descriptor = os.open(self.place(step), flags, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        view = memoryview(self.memory)
        for start in range(0, size, 8 << 20):
            os.pwrite(descriptor, view[start : start + (8 << 20)], start)
        os.fsync(descriptor)
        os.close(descriptor)
        return done()


class RawDirect(RawWrite):
    """The same, written past the page cache."""

    direct = True
