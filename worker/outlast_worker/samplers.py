"""Which samples come when, and which random streams each one sees: all from seed, epoch and sample."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

SampleOrder = Callable[[int], Sequence[int]]
"""A custom order: from the epoch to the indices of its samples; the same list each time it is asked."""


class Draw(NamedTuple):
    """One batch asked for: what travels to a loader process."""

    seed: int
    epoch: int
    ids: tuple[int, ...]


class Position(NamedTuple):
    """A place between two batches. It is kept in samples, so that it outlives a change of the batch size."""

    epoch: int = 0
    sample: int = 0
    batch: int = 0  # batches of this epoch before it, for people


class Order:
    """The order of the samples in each epoch, and how it is cut into batches."""

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        custom: SampleOrder | None = None,
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._custom = custom
        # Two epochs: prefetch draws from the next one while this one is still being consumed.
        self._recent: collections.OrderedDict[int, np.ndarray[Any, np.dtype[np.int64]]] = (
            collections.OrderedDict()
        )

    def reseed(self, seed: int) -> None:
        """Take the seed of a checkpoint: the order is then the one it was cut from."""
        self.seed = seed
        self._recent.clear()

    def samples(self, epoch: int) -> int:
        """How many samples the epoch hands out."""
        drawn = self.length if self._custom is None else len(self.of(epoch))
        total = drawn - drawn % self.batch_size if self.drop_last else drawn
        if total == 0:
            short = f", since drop_last is set and batch_size is {self.batch_size}" if drawn else ""
            raise ValueError(f"epoch {epoch} has {drawn} samples and so not one batch{short}")
        return total

    def batches(self, epoch: int) -> int:
        return -(-self.samples(epoch) // self.batch_size)

    def of(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices of the epoch in order."""
        if epoch not in self._recent:
            self._recent[epoch] = self._drawn(epoch)
            while len(self._recent) > 2:
                self._recent.popitem(last=False)
        return self._recent[epoch]

    def _drawn(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._custom is not None:
            return np.asarray(list(self._custom(epoch)), dtype=np.int64)
        if not self.shuffle:
            return np.arange(self.length, dtype=np.int64)
        # The stream of RandomState is frozen by numpy's compatibility policy; torch.randperm's is not, and
        # an upgrade in the middle of an epoch must not change who has been seen.
        key = np.frombuffer(_digest(b"order", self.seed, epoch), dtype="<u4").astype(np.uint32)
        return np.asarray(np.random.RandomState(key).permutation(self.length), dtype=np.int64)

    def draw(self, at: Position) -> Draw:
        """The batch that begins at the position."""
        end = min(at.sample + self.batch_size, self.samples(at.epoch))
        return Draw(self.seed, at.epoch, tuple(self.of(at.epoch)[at.sample : end].tolist()))

    def after(self, at: Position) -> Position:
        """The position behind the batch that begins at this one: still in its epoch, if at its end."""
        at = self.settled(at)
        return Position(at.epoch, min(at.sample + self.batch_size, self.samples(at.epoch)), at.batch + 1)

    def settled(self, at: Position) -> Position:
        """Where the next batch begins: behind the end of an epoch, or a rest too short, in the next one."""
        total = self.samples(at.epoch)
        if at.sample >= total or (self.drop_last and at.sample + self.batch_size > total):
            return Position(at.epoch + 1)
        return at


class BatchStream:
    """An endless stream of batches over all epochs, with what was sent and not yet received."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._next = Position()
        self.outstanding: collections.deque[tuple[Position, Draw]] = collections.deque()

    def seek(self, at: Position) -> None:
        self._next = at

    @property
    def upcoming(self) -> Position:
        """The position of the next batch to be received."""
        return self.outstanding[0][0] if self.outstanding else self._order.settled(self._next)

    def __iter__(self) -> Iterator[Draw]:
        while True:
            at = self._order.settled(self._next)
            draw = self._order.draw(at)
            self._next = self._order.after(at)
            self.outstanding.append((at, draw))
            yield draw


class SeededDataset:
    """A map-style dataset whose samples each see random streams of their own.

    The process-wide streams of python, numpy (legacy) and torch (CPU) are set from seed, epoch and sample
    before each sample, so that it does not matter which process loads it, nor what was loaded before. A
    dataset's own ``__getitems__`` isn't used, since the samples of one batch could then not be told apart.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, draw: Draw) -> list[Any]:
        samples = [self._sample(draw, index) for index in draw.ids]
        # What the collate function draws must not hang on how much the last sample drew.
        seed_streams(_digest(b"batch", draw.seed, draw.epoch, *draw.ids))
        return samples

    def _sample(self, draw: Draw, index: int) -> Any:
        seed_streams(_digest(b"sample", draw.seed, draw.epoch, index))
        return self.dataset[index]


def seed_streams(key: bytes) -> None:
    """Set the process-wide streams of python, numpy and torch (CPU) from a 32-byte key."""
    random.seed(int.from_bytes(key[:8], "little"))
    np.random.seed(int.from_bytes(key[8:12], "little"))
    # Not torch.manual_seed: that one would also set the streams of every CUDA device.
    torch.default_generator.manual_seed(int.from_bytes(key[16:24], "little") >> 1)


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    """Give the process-wide streams back as they were."""
    python = random.getstate()
    numpy = np.random.get_state(legacy=False)
    cpu = torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(cpu)


def _digest(purpose: bytes, *numbers: int) -> bytes:
    text = ",".join(map(str, numbers)).encode()
    return hashlib.blake2b(text, digest_size=32, person=purpose).digest()
