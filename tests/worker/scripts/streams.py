"""A device whose streams are threads: each does what is queued on it, in order and as late as it is let."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

PATIENCE = 60.0  # seconds; then something waits for what will never come


class Stream:
    """A thread that does what is queued; the one without a thread does it at once, in whatever thread queues."""

    def __init__(self, *, thread: bool = True) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._threaded = thread
        if thread:
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, work: Callable[[], Any]) -> None:
        if self._threaded:
            self._queue.put(work)
        else:
            work()

    def _work(self) -> None:
        while True:
            self._queue.get()()


def until(event: threading.Event) -> None:
    if not event.wait(PATIENCE):
        raise RuntimeError("nobody has done it")


class Threads:
    """A device of such streams, and all devices there are. Every tensor lies on it that ``holds`` says so of."""

    def __init__(
        self,
        holds: Callable[[torch.Tensor], bool] = lambda _: True,
        current: Stream | None = None,
        *,
        pins: bool = True,
    ) -> None:
        self.log: list[str] = []
        self._pins = pins
        self.stream = current or Stream()
        self.recording = False
        self._side = Stream()
        self._holds = holds

    # --- all devices ---

    def of(self, tensor: torch.Tensor) -> Threads | None:
        return self if self._holds(tensor) else None

    def capturing(self) -> bool:
        return self.recording

    def pinning(self, _: Any) -> Callable[[Any], None] | None:
        return (lambda buffer: setattr(buffer, "pinned", True)) if self._pins else None

    # --- one of them ---

    def current(self) -> Stream:
        return self.stream

    def side(self) -> Stream:
        return self._side

    def queue(self, stream: Stream, work: Callable[[], None]) -> None:
        self._say("queue", stream)
        stream.put(work)

    def mark(self, stream: Stream) -> threading.Event:
        self._say("mark", stream)
        event = threading.Event()
        stream.put(event.set)
        return event

    def hold(self, stream: Stream, event: threading.Event) -> None:
        self._say("hold", stream)
        stream.put(lambda: until(event))

    def reach(self, event: threading.Event) -> None:
        self.log.append("reach")
        until(event)

    def used(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._say("used", stream)

    def host(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def _say(self, what: str, stream: Stream) -> None:
        self.log.append(f"{what} {'side' if stream is self._side else 'current'}")


class Late(Threads):
    """The training's thread does the training's work by itself; the side stream begins when that waits for it."""

    def __init__(self, holds: Callable[[torch.Tensor], bool], *, pins: bool) -> None:
        super().__init__(holds, Stream(thread=False), pins=pins)
        self.broken = False
        self._gate = threading.Event()

    def queue(self, stream: Stream, work: Callable[[], None]) -> None:
        if stream is self.side():
            gate = self._gate
            stream.put(lambda: until(gate))
        super().queue(stream, work)

    def hold(self, stream: Stream, event: threading.Event) -> None:
        if stream is self.side():  # at a boundary
            self._gate = threading.Event()
        else:
            self.let_go()
        super().hold(stream, event)

    def reach(self, event: threading.Event) -> None:
        if self.broken:
            raise RuntimeError("the device is gone")
        if threading.current_thread() is threading.main_thread():
            self.let_go()
        super().reach(event)

    def let_go(self) -> None:
        """What is queued on the side stream until the next boundary is done now, whoever waits for it."""
        self._gate.set()
