"""A thread that does what may block: files of the run directory, which may hang, never stop the loop."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from outlast_jobs.parallel import start_thread


class NoThread(OSError):
    """A thread that cannot be done without is not to be had: the text says what helps."""


class Helper:
    """Run jobs one after another in a daemon thread and hand each result to ``deliver``.

    ``deliver(tag, result, error)`` is called in the thread; it must only enqueue. ``nice`` lowers the
    priority of this thread alone (on Linux a priority belongs to a thread). NoThread where there is none.
    """

    def __init__(
        self, name: str, deliver: Callable[[str, Any, BaseException | None], None], nice: int = 0
    ) -> None:
        self._deliver = deliver
        self._nice = nice
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], Any]]] = queue.SimpleQueue()
        self._submitted = 0
        self._delivered = 0
        self._lock = threading.Lock()
        self._since: float | None = None
        # daemonic: a thread stuck in a dead file system must not keep the process from ending
        if start_thread(self._work, name) is None:
            raise NoThread(
                errno.EAGAIN,
                "cannot start a thread: there are as many processes and threads as may be, or no memory for one "
                "more; raise the limit (ulimit -u or -v, or pids.max of the control group), or end what uses it up",
            )

    @property
    def pending(self) -> int:
        """Jobs handed in whose result was not delivered yet."""
        with self._lock:
            return self._submitted - self._delivered

    def stuck(self, now: float) -> float:
        """Seconds for which the present job has been at it, 0 where there is none."""
        since = self._since
        return now - since if since is not None else 0.0

    def submit(self, tag: str, job: Callable[[], Any]) -> None:
        """Hand in a job; its result comes through ``deliver`` under this tag."""
        with self._lock:
            self._submitted += 1
        self._jobs.put((tag, job))

    def _work(self) -> None:
        if self._nice:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        while True:
            tag, job = self._jobs.get()
            self._since = time.monotonic()
            result: Any = None
            error: BaseException | None = None
            try:
                result = job()
            except Exception as caught:
                error = caught
            self._since = None
            with self._lock:
                self._delivered += 1
            self._deliver(tag, result, error)


def bounded(job: Callable[[], object], seconds: float) -> bool:
    """Do something that may hang, and go on without it after a while; whether it ended in time.

    Where there is no thread for it, it is done in place: a disk is dead more rarely than not.
    """
    ended = threading.Event()

    def work() -> None:
        try:
            job()
        finally:
            ended.set()

    if start_thread(work, "bounded") is None:
        work()
    return ended.wait(seconds)
