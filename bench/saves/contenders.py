"""Ways to save a training's state, each as its own documents tell it: `save` at a boundary, `settled` when on disk."""

from __future__ import annotations

import copy
import mmap
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Contender(ABC):
    """One way. ``save`` returns when the training may go on; the future's result comes when all is on disk."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.pool = ThreadPoolExecutor(1)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.detach() for t in (*self.model.parameters(), *moments) if isinstance(t, torch.Tensor)]

    @abstractmethod
    def save(self, step: int) -> Future[None]: ...

    def close(self) -> None:
        self.pool.shutdown()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _sync(path: Path) -> None:
    """Nobody's save is on disk before its bytes are: those who don't sync are synced."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


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
        return _done()


class RawWrite(Contender):
    """The same bytes from memory to a file, buffered, and one fsync: what no save can be sooner durable than."""

    direct = False

    def save(self, step: int) -> Future[None]:
        size = sum(t.nbytes for t in self.tensors())
        size -= size % mmap.PAGESIZE
        if not hasattr(self, "memory"):
            self.memory = mmap.mmap(-1, size)
            self.memory.write(os.urandom(1 << 20) * (size >> 20))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if self.direct else 0)
        descriptor = os.open(self.folder / f"raw-{step % 2}", flags, 0o600)
        os.posix_fallocate(descriptor, 0, size)
        view = memoryview(self.memory)
        for start in range(0, size, 8 << 20):
            os.pwrite(descriptor, view[start : start + (8 << 20)], start)
        os.fsync(descriptor)
        os.close(descriptor)
        return _done()


class RawDirect(RawWrite):
    """The same, written past the page cache."""

    direct = True


class TorchSave(Contender):
    """torch.save, fsync, rename."""

    def write(self, state: dict[str, Any], step: int) -> None:
        new = self.folder / "ckpt.new"
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / f"ckpt-{step % 2}.pt")

    def save(self, step: int) -> Future[None]:
        self.write(self.state(), step)
        return _done()


class TorchSaveThread(TorchSave):
    """torch.save in a thread, of a clone."""

    def save(self, step: int) -> Future[None]:
        return self.pool.submit(self.write, copy.deepcopy(self.state()), step)


class Distributed(Contender):
    """torch.distributed.checkpoint, async, with its staging buffers kept."""

    process = False

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
        dist.init_process_group("gloo", rank=0, world_size=1)
        kind = AsyncCheckpointerType.PROCESS if self.process else AsyncCheckpointerType.THREAD
        stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=self.process,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        self.begin: Callable[..., Any] = lambda state, path: dcp.async_save(
            state, checkpoint_id=path, async_checkpointer_type=kind, async_stager=stager
        )

    def save(self, step: int) -> Future[None]:
        path = self.folder / f"dcp-{step % 2}"
        shutil.rmtree(path, ignore_errors=True)
        begun = self.begin(self.state(), str(path))
        future = getattr(begun, "upload_completion", begun)

        def wait() -> None:
            future.result()
            _sync(path)

        return self.pool.submit(wait)


class DistributedProcess(Distributed):
    """The same with a process of its own and shared memory."""

    process = True


class LightningAsync(Contender):
    """Lightning's AsyncCheckpointIO."""

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.plugin = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self, step: int) -> Future[None]:
        path = self.folder / f"lightning-{step % 2}.ckpt"
        path.unlink(missing_ok=True)
        self.plugin.save_checkpoint(self.state(), str(path))
        executor = self.plugin._executor
        if executor is None:
            raise RuntimeError("this version of Lightning has no executor to wait for")
        saved = executor.submit(lambda: None)  # its one thread gets to this after the save

        def wait() -> None:
            saved.result()
            _sync(path)

        return self.pool.submit(wait)


class Outlast(Contender):
    """outlast_worker under its supervisor, asked by the signal that a cluster sends."""

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        from outlast_worker import Checkpointer

        self.ckpt = Checkpointer(model=self.model, optimizer=self.optimizer)
        self.ckpt.__enter__()
        self.checkpoints = Path(os.environ["OUTLAST_RUN"]) / "checkpoints"

    def boundary(self) -> None:
        """What every step of a supervised training ends with."""
        self.ckpt.step()

    def save(self, step: int) -> Future[None]:
        import signal

        known = set(os.listdir(self.checkpoints))
        os.kill(os.getpid(), signal.SIGUSR1)
        self.ckpt.step()
        found = threading.Event()

        def wait() -> None:
            while not any(n.startswith("step-") for n in set(os.listdir(self.checkpoints)) - known):
                found.wait(0.001)

        return self.pool.submit(wait)

    def close(self) -> None:
        self.ckpt.__exit__(None, None, None)  # the last generation, and the word that the run is done
        super().close()


CONTENDERS: dict[str, type[Contender]] = {
    "memcpy": Memcpy,
    "raw write": RawWrite,
    "raw direct write": RawDirect,
    "torch.save": TorchSave,
    "torch.save in a thread": TorchSaveThread,
    "DCP async": Distributed,
    "DCP process": DistributedProcess,
    "Lightning async": LightningAsync,
    "outlast": Outlast,
}
