"""The time between a boundary and the next update, in which a state is copied while the training reads it.

What is copied may not change in that time. A change by an operation of torch moves the tensor's version counter,
which does so only after the bytes have changed: so it is read by the training's own thread, between operations.
A change through ``.data`` or numpy moves nothing: it is found by comparing, where that is asked for.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch

from outlast_jobs.parallel import start_thread

SAMPLES = 256
"""Samples in all of a state that is copied meanwhile; each costs about a microsecond at the boundary."""

_PIECE = 8 << 20
_SAMPLE = 32  # bytes
_MOST = 64  # of one span


class Interrupted(Exception):
    """A thread that carried a copy was stopped by an exception: the copy is not whole."""


class Span(NamedTuple):
    """Bytes to copy: from where to where, and the tensor whose memory they are."""

    source: int
    target: int
    nbytes: int
    tensor: torch.Tensor


class Watched(NamedTuple):
    """A tensor that may not change, and its version at the boundary."""

    tensor: torch.Tensor
    version: int

    @property
    def changed(self) -> bool:
        return bool(self.tensor._version != self.version)


def watch(tensors: Sequence[torch.Tensor]) -> list[Watched]:
    """These tensors as they are now."""
    return [Watched(tensor, int(tensor._version)) for tensor in tensors]


class Copying:
    """Spans on their way into the buffer. Any number of threads may carry them."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._left: list[tuple[int, int, int]] = []
        for source, target, nbytes, _ in reversed(spans):
            if nbytes <= _PIECE:
                self._left += [(source, target, nbytes)] if nbytes else []
            else:
                at = reversed(range(0, nbytes, _PIECE))
                self._left += [(source + n, target + n, min(_PIECE, nbytes - n)) for n in at]
        self._kept = list(spans)  # their tensors keep the memory
        self._open = len(self._left)
        self._lock = threading.Lock()
        self._interrupted = False
        self.done = threading.Event()
        if not self._left:
            self.done.set()

    def work(self) -> None:
        """Carry pieces until none is left; another thread may still be at its last one."""
        try:
            self._carry()
        except BaseException:
            # a signal's handler has raised it, and a piece may be lost: nobody may wait for that
            self._interrupted = True
            self._left.clear()  # no other one goes on writing into the buffer
            self.done.set()
            raise

    def finish(self) -> None:
        """Help, and wait for the rest. Interrupted where the thread of another call of this was."""
        self.work()
        self.done.wait()
        if self._interrupted:
            raise Interrupted

    def _carry(self) -> None:
        while True:
            try:
                source, target, nbytes = self._left.pop()
            except IndexError:
                return
            ctypes.memmove(target, source, nbytes)
            with self._lock:
                self._open -= 1
                last = self._open == 0
            if last:
                self._kept.clear()
                self.done.set()


def copy_now(spans: Sequence[Span]) -> None:
    """Copy them all before this returns, with a second thread where that is worth one."""
    copying = Copying(spans)
    if sum(span.nbytes for span in spans) > 2 * _PIECE:
        start_thread(copying.work, "outlast-copy")
    copying.finish()


def same(spans: Sequence[Span]) -> bool:
    """Whether what was copied is still what stands in the sources, byte for byte."""
    return all(_same(span) for span in spans)


def differing(spans: Sequence[Span]) -> list[torch.Tensor]:
    """Whose bytes are others by now."""
    return [span.tensor for span in spans if not _same(span)]


def _same(span: Span) -> bool:
    compare = ctypes.CDLL(None).memcmp
    source, target = ctypes.c_void_p(span.source), ctypes.c_void_p(span.target)
    return bool(compare(source, target, ctypes.c_size_t(span.nbytes)) == 0)


class Probe:
    """A few bytes of each span as they were at the boundary: what changes a whole tensor unseen changes them too."""

    def __init__(self, spans: Sequence[Span], chance: random.Random) -> None:
        each = min(max(SAMPLES // max(len(spans), 1), 1), _MOST)
        self._seen: list[tuple[int, bytes, torch.Tensor]] = []
        bits = chance.getrandbits
        for source, target, nbytes, tensor in spans if SAMPLES else ():
            size = min(_SAMPLE, nbytes)
            last = nbytes - size
            places = [bits(62) % (last + 1)] if each == 1 else [0, last]
            places += [bits(62) % (last + 1) for _ in range(each - len(places))]
            for at in places:
                self._seen.append((target + at, ctypes.string_at(source + at, size), tensor))

    def found_again(self) -> bool:
        """Whether they stand in the copy."""
        return all(ctypes.string_at(target, len(seen)) == seen for target, seen, _ in self._seen)

    def lost(self) -> list[torch.Tensor]:
        """Whose bytes stand there otherwise."""
        return [tensor for target, seen, tensor in self._seen if ctypes.string_at(target, len(seen)) != seen]
