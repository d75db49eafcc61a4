"""What ends the keeper's sleep: signals, deaths, and threads that have something to say."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Iterable
from types import FrameType

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import early, linux

_MOST = 4096  # bytes read at once


class Wakeups:
    """One selector over pipes and pidfds."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._signals, self._note = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pinned: dict[ProcessIdentity, int] = {}
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        self._selector.register(self._wakes, selectors.EVENT_READ, None)

    def listen(self, numbers: Iterable[int]) -> list[int]:
        """Take over these signals; those that came before are returned."""
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)
        kept = early.drain()
        for number in numbers:
            # also where it was ignored: what we handle, the supervisors have at its default
            signal.signal(number, _noted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        early.drain()  # what came in between lies in the pipe as well
        return kept

    def wake(self) -> None:
        """End the present sleep; may be called from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake, b"w")

    def watch(self, process: ProcessIdentity) -> None:
        """Have the end of a process that is no child of ours end the sleep, where the kernel can tell."""
        with contextlib.suppress(OSError):
            fd = linux.pidfd_open(process.pid)
            self._pinned[process] = fd
            self._selector.register(fd, selectors.EVENT_READ, process)

    def forget(self, process: ProcessIdentity) -> None:
        """No longer watch a process."""
        fd = self._pinned.pop(process, None)
        if fd is not None:
            self._selector.unregister(fd)
            os.close(fd)

    def sleep(self, seconds: float | None) -> tuple[list[int], list[ProcessIdentity]]:
        """Wait for something: the signals that came, each once, and the watched processes that ended."""
        ready = self._selector.select(seconds)
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, _MOST)
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._signals, _MOST)
        return list(dict.fromkeys(numbers)), [key.data for key, _ in ready if key.data is not None]

    def close(self) -> None:
        """Give the descriptors back."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for fd in (self._signals, self._note, self._wakes, self._wake, *self._pinned.values()):
            os.close(fd)


def _noted(number: int, frame: FrameType | None) -> None:
    """The byte in the pipe says it all."""
