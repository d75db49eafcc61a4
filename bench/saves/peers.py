"""How others save, each as its own documents tell it, with the options that they name for speed."""

from __future__ import annotations

import copy
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from contender import LOOK, Contender, done, sync

THREADS = len(os.sched_getaffinity(0))
PATIENCE = 300.0  # seconds


class TorchSave(Contender):
    """torch.save, fsync, rename."""

    def write(self, state: dict[str, Any], step: int) -> None:
        new = self.folder / "saved.new"
        torch.save(state, str(new))
        sync(new)
        new.replace(self.place(step))

    def save(self, step: int) -> Future[None]:
        self.write(self.state(), step)
        return done()


class TorchSaveThread(TorchSave):
    """torch.save in a thread, of a clone."""

    def save(self, step: int) -> Future[None]:
        return self.pool.submit(self.write, copy.deepcopy(self.state()), step)


class Distributed(Contender):
    """torch.distributed.checkpoint, async: its staging buffers are kept, and as many threads write as there are cores.

    Pinned memory and copies that do not block are for devices; where there is none they can't be had.
    """

    process = False
    meanwhile = False

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        import torch.distributed as dist
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        os.environ["MASTER_ADDR"] = "127.0.0.1"  # where the process that saves is met
        store = self.folder / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        self.stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=self.process,
                use_async_staging=self.meanwhile,
                use_non_blocking_copy=False,
            )
        )
        self.staged: Future[None] = done()
        self.optimizer.register_step_pre_hook(lambda *_: self.staged.result())

    def save(self, step: int) -> Future[None]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        path = self.place(step)
        begun = dcp.async_save(
            self.state(),
            checkpoint_id=path,
            storage_writer=dcp.FileSystemWriter(path, thread_count=THREADS),
            planner=dcp.DefaultSavePlanner(enable_plan_caching=True),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS
            if self.process
            else AsyncCheckpointerType.THREAD,
            async_stager=self.stager,
        )
        future = begun if isinstance(begun, Future) else begun.upload_completion
        if not isinstance(begun, Future):
            self.staged = begun.staging_completion

        def wait() -> None:
            future.result(PATIENCE)
            sync(path)

        return self.pool.submit(wait)

    def close(self) -> None:
        super().close()
        self.stager.close()


class DistributedProcess(Distributed):
    """The same with a process of its own and shared memory."""

    process = True


class DistributedMeanwhile(Distributed):
    """The same with its staging in a thread, for which the next update waits."""

    meanwhile = True


class DistributedBoth(DistributedProcess):
    """Both: a process of its own, and staged in a thread."""

    meanwhile = True


class LightningAsync(Contender):
    """Lightning's AsyncCheckpointIO."""

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

        self.plugin = AsyncCheckpointIO(TorchCheckpointIO())

    def save(self, step: int) -> Future[None]:
        path = self.place(step)
        self.plugin.save_checkpoint(self.state(), str(path))
        executor = self.plugin._executor
        if executor is None:
            raise RuntimeError("this version of Lightning has no executor to wait for")
        saved = executor.submit(lambda: None)  # its one thread gets to this after the save

        def wait() -> None:
            saved.result()
            if self.plugin._error is not None:
                raise self.plugin._error
            sync(path)

        return self.pool.submit(wait)


class FlashCheckpoint(Contender):
    """DLRover's flash checkpoint: into shared memory, and to disk by the process that it starts for that itself."""

    def __init__(self, *fixed: Any) -> None:
        super().__init__(*fixed)
        os.environ["TORCHELASTIC_RUN_ID"] = (
            self.folder.name
        )  # after which its sockets and its memory are named
        os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
        from dlrover.python.common.constants import CheckpointConstant
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

        self.disk = StorageType.DISK
        self.kept = self.folder / "dlrover"
        self.kept.mkdir()
        self.checkpointer = DdpCheckpointer(str(self.kept))
        self.newest = self.kept / CheckpointConstant.TRACER_FILE_NAME

    def place(self, step: int) -> Path:
        return self.kept / str(step + 1)  # its steps begin with 1

    def save(self, step: int) -> Future[None]:
        path = self.place(step)
        self.checkpointer.save_checkpoint(step + 1, self.state(), storage_type=self.disk)

        def wait() -> None:
            until = time.monotonic() + PATIENCE
            while not self.newest.exists() or self.newest.read_text() != path.name:
                if time.monotonic() > until:
                    raise TimeoutError(f"step {path.name} was not saved in {PATIENCE:g} s")
                time.sleep(LOOK)  # so fine is the figure: it is the time at which its word was seen
            sync(path)

        return self.pool.submit(wait)
