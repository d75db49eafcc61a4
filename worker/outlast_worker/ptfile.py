"""Write and read ``.pt`` files: streamed as they are made, loaded only by the loader that runs no code."""

from __future__ import annotations

import io
import queue
import re
from collections.abc import Generator, Iterator
from typing import IO, Any, cast

import torch

from outlast_jobs.parallel import start_thread

OLDEST_TORCH = (2, 6)  # before it, weights_only=True could be made to run code

_PIECE = 8 << 20
_IN_FLIGHT = 4  # pieces between the thread that serializes and the one that hashes and writes


class UnsafeTorch(RuntimeError):
    """The installed torch can't load a checkpoint, or not safely. Install a newer one."""


def not_by_the_file(error: BaseException, name: str) -> MemoryError | UnsafeTorch | None:
    """What to raise where ``name`` did not load and is not damaged: no memory, or a type of another torch."""
    if "allocate memory" in str(error):  # torch has no exception of its own for this
        return MemoryError(f"{name}: {error}")
    found = re.search(r"GLOBAL torch\.([A-Za-z]\w*)\b(?!\.)", str(error))
    if found is None or hasattr(torch, found[1]):
        return None
    return UnsafeTorch(
        f"{name} has values of torch.{found[1]}, which torch {torch.__version__} does not have; "
        "resume with the torch that saved it"
    )


def telling_line(error: BaseException) -> str:
    """The line of torch's page-long message that says what was refused."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])[:300]


def stream(content: Any) -> Generator[bytes, None, None]:
    """The bytes of ``torch.save(content)`` as they are made, so that writing needs no copy of it all.

    ``torch.save`` only pushes and a durable write only pulls, so the one runs in a thread of its own.
    """
    pipe = _Pipe()

    def produce() -> None:
        try:
            torch.save(content, cast(IO[bytes], pipe))
        except BaseException as error:  # handed to the reader, whose failure it is
            pipe.finish(error)
        else:
            pipe.finish(None)

    thread = start_thread(produce, "outlast-serialize")
    # no more threads for us: then all of it lies in memory once, and no save is lost by that
    if thread is None:
        whole = io.BytesIO()
        torch.save(content, whole)
        yield whole.getvalue()
        return
    try:
        yield from pipe.chunks()
    finally:
        pipe.abandon()
        thread.join()


def load_pt(data: memoryview | bytes) -> Any:
    """What a ``.pt`` file holds, through the loader that runs no code."""
    require_safe_loader()
    return torch.load(cast(IO[bytes], _Bytes(data)), map_location="cpu", weights_only=True, mmap=False)


def require_safe_loader(version: str | None = None) -> None:
    """Refuse a torch whose safe loader isn't safe."""
    version = version or str(torch.__version__)
    numbers = tuple(
        int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:2]
    )
    if numbers < OLDEST_TORCH:
        raise UnsafeTorch(
            f"torch {version} can't load checkpoints safely: before 2.6 a crafted file runs code even with "
            "weights_only=True; install torch 2.6 or newer"
        )


class InMemory(io.RawIOBase):
    """A read-only file of that many bytes; what is at ``_at`` is given by the ``readinto`` of a class of its own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


class _Bytes(InMemory):
    """Bytes that are already here; ``io.BytesIO`` would copy them."""

    def __init__(self, data: memoryview | bytes) -> None:
        super().__init__(len(data))
        self._data = memoryview(data)

    def readinto(self, buffer: Any) -> int:
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Pipe:
    """The file that ``torch.save`` writes to: a bounded queue of pieces."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_IN_FLIGHT)
        self._small = bytearray()
        self._abandoned = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if view.nbytes < _PIECE // 8:
            self._small += view
            if len(self._small) >= _PIECE:
                self.flush()
        else:
            self.flush()
            for start in range(0, view.nbytes, _PIECE):
                # the memory behind it is only lent for this call
                self._put(bytes(view[start : start + _PIECE]))
        return view.nbytes

    def flush(self) -> None:
        if self._small:
            self._put(bytes(self._small))
            self._small.clear()

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self.flush()
        self._put(error)

    def chunks(self) -> Iterator[bytes]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def abandon(self) -> None:
        self._abandoned = True
        try:
            while True:  # a writer that waits for room wakes
                self._queue.get_nowait()
        except queue.Empty:
            pass

    def _put(self, item: bytes | BaseException | None) -> None:
        # Once nobody reads, the rest is swallowed: an exception here would unwind through torch's archive
        # writer, which then tries to end the file and throws out of a destructor.
        if not self._abandoned:
            self._queue.put(item)
