"""The loop: signals, deaths, messages, helpers' results, requests and timers become events, one at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import early, processes
from . import events as ev
from .clock import Clocks, stood_still
from .helper import Helper
from .intake import Intake, Trainers
from .notify import NotifySocket
from .policy import Context, Policy
from .states import State
from .table import decide
from .timers import next_due

Result = tuple[str, Any, BaseException | None]
MOST_ROUNDS = 64  # of reading messages at once: more than the kernel queues, fewer than a flood brings
MOST_SIGNALS = 4096  # bytes read from the wake-up descriptor at once; each is one signal


class Loop:
    """Owns every source of events and the state; what is decided goes to ``carry``.

    It sleeps until something happens or the next deadline comes. Nothing in it waits for a file of the
    run directory: helpers do that.
    """

    def __init__(self, policy: Policy, complain: Callable[[str], None]) -> None:
        self.policy = policy
        self.selector = selectors.DefaultSelector()
        self.notify = NotifySocket()
        self.trainers = Trainers(self.selector)
        self.intake = Intake(self.trainers, complain)
        self.state: State | None = None
        self.carry: Callable[[State, tuple[Any, ...]], None] = lambda state, actions: None
        self.on_signal: Callable[[int], None] = lambda number: None
        self.on_child: Callable[[int, int], None] = lambda pid, status: None
        self.on_result: Callable[[str, Any, BaseException | None], None] = lambda tag, result, error: None
        self.on_idle: Callable[[float], None] = lambda now: None
        self.on_pause: Callable[[float], None] = lambda seconds: None
        self.on_jump: Callable[[float, bool], None] = lambda seconds, suspended: None
        self.dues: list[Callable[[], float | None]] = []
        self.stopped = False
        self._events: deque[ev.Event] = deque()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        # pipes: one holds 65,536 single bytes, a pair of sockets 278, and what it does not hold is a lost signal
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signal_read, self._signal_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._clocks = Clocks.now()
        self._deaths = False
        self._heeded: set[int] = set()
        self._attended: dict[int, Callable[[], None]] = {}

    # -- sources -------------------------------------------------------------------------------------------

    def helper(self, name: str, nice: int = 0) -> Helper:
        """A helper whose results come through ``on_result``."""
        return Helper(name, self._deliver, nice)

    def wake(self) -> None:
        """End the present sleep; may be called from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")

    def attend(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever this descriptor can be read, or its other end was closed."""
        self._attended[fd] = callback
        self.selector.register(fd, selectors.EVENT_READ, ("attended", fd))

    def neglect(self, fd: int) -> None:
        """No longer; before the descriptor is closed."""
        if self._attended.pop(fd, None) is not None:
            self.selector.unregister(fd)

    def post(self, event: ev.Event) -> None:
        """Queue an event; only from the loop's own thread."""
        self._events.append(event)

    def listen(self, numbers: set[int]) -> None:
        """Take over these signals: each arrives as a byte, and what came before is not lost."""
        signal.set_wakeup_fd(self._signal_write, warn_on_full_buffer=False)
        kept = early.drain()
        self.heed(numbers | {signal.SIGCHLD})
        early.drain()  # what came in between lies in the pipe as well
        self.selector.register(self._signal_read, selectors.EVENT_READ, ("signals", 0))
        self.selector.register(self._wake_read, selectors.EVENT_READ, ("wake", 0))
        self.selector.register(self.notify, selectors.EVENT_READ, ("notify", 0))
        for number in kept:
            self.on_signal(number)

    def reachable(self) -> str:
        """The path of the notify socket, made anew where it was removed: logging out takes $XDG_RUNTIME_DIR.

        OSError where that cannot be done now.
        """
        if not os.path.lexists(self.notify.path):
            fresh = NotifySocket()
            self.selector.unregister(self.notify)
            self.notify.close()
            self.notify = fresh
            self.selector.register(fresh, selectors.EVENT_READ, ("notify", 0))
        return self.notify.path

    def heed(self, numbers: set[int]) -> None:
        """Have these signals come as bytes, also where whoever started us had them blocked."""
        self._heeded |= numbers
        for number in numbers:
            signal.signal(number, _noted)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    # -- running -------------------------------------------------------------------------------------------

    def run(self, state: State, actions: tuple[Any, ...]) -> None:
        """Run until ``stopped`` is set."""
        self.state = state
        self.carry(state, actions)
        while not self.stopped:
            self._drain()
            if self.stopped:
                break
            self._sleep()

    def _drain(self) -> None:
        while True:
            while self._events:
                self.dispatch(self._events.popleft())
            self.on_idle(time.monotonic())
            if not self._events or self.stopped:
                return

    def dispatch(self, event: ev.Event) -> None:
        """Decide on one event and have it carried out."""
        if self.state is None:
            return
        ctx = Context(self.policy, time.monotonic(), _chance())
        self.state, actions = decide(self.state, event, ctx)
        self.carry(self.state, actions)

    def _sleep(self) -> None:
        before = time.monotonic()
        wanted = self._due(before)
        timeout = None if wanted is None else max(0.0, wanted - before)
        ready = self.selector.select(timeout)
        after = time.monotonic()
        if late := stood_still(wanted, before, after):
            self.on_pause(late)
            self.post(ev.Paused(late))
        was_set, suspended = self._clocks.look(Clocks.now())
        if suspended:
            self.on_jump(suspended, True)
        if was_set:
            self.on_jump(was_set, False)
        # messages come before deaths: the last words of a trainer are in the socket when its end is told
        for key, _ in sorted(ready, key=lambda r: _ORDER[r[0].data[0]]):
            self._read(*key.data)
        if self._deaths:
            self._deaths = False
            self._hear(all_of_it=True)
            for pid in self.trainers.unpinned_gone():
                self._trainer_gone(pid)
            processes.reap(self.on_child)
        wanted = next_due(self.state, self.policy, after) if self.state else None
        if wanted is not None and after >= wanted:
            self.post(ev.Tick())

    def _due(self, now: float) -> float | None:
        dues = [due() for due in self.dues]
        if self.state is not None:
            dues.append(next_due(self.state, self.policy, now))
        return min((d for d in dues if d is not None), default=None)

    def _read(self, kind: str, number: int) -> None:
        if kind == "notify":
            self._hear()
        elif kind == "signals":
            self._signals()
        elif kind == "wake":
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._collect()
        elif kind == "trainer":
            self._hear(all_of_it=True)
            self._trainer_gone(number)
        elif kind == "attended" and number in self._attended:
            self._attended[number]()

    def _trainer_gone(self, pid: int) -> None:
        gone = self.trainers.gone(pid)
        if gone is not None:
            self.post(ev.TrainerGone(gone))

    def _hear(self, *, all_of_it: bool = False) -> None:
        """Read messages; before a death is told all of them, or a last word would come too late."""
        for _ in range(MOST_ROUNDS if all_of_it else 1):
            messages = self.notify.receive()
            for message in messages:
                for event in self.intake.events(message):
                    self.post(event)
            if not messages:
                return

    def _signals(self) -> None:
        try:
            numbers = os.read(self._signal_read, MOST_SIGNALS)
        except BlockingIOError:
            return
        for number in dict.fromkeys(numbers):  # fifty of a kind are one
            if number == signal.SIGCHLD:
                self._deaths = True
            else:
                for _ in range(min(2, numbers.count(number)) if number == signal.SIGINT else 1):
                    self.on_signal(number)

    def _deliver(self, tag: str, result: Any, error: BaseException | None) -> None:
        self._results.put((tag, result, error))
        self.wake()

    def _collect(self) -> None:
        while True:
            try:
                tag, result, error = self._results.get_nowait()
            except queue.Empty:
                return
            self.on_result(tag, result, error)

    def close(self) -> None:
        """Give back what this loop holds; signals are ignored from here on, the end is near."""
        signal.set_wakeup_fd(-1)
        # an interpreter that ends restores all but what is ignored
        for number in self._heeded - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        self.trainers.clear()
        self.selector.close()
        self.notify.close()
        for end in (self._wake_read, self._wake_write, self._signal_read, self._signal_write):
            os.close(end)


# first what a standby answers: that it is the worker now comes before that worker's own first words
_ORDER = {"attended": 0, "notify": 1, "trainer": 2, "wake": 3, "signals": 4}


def _noted(number: int, frame: FrameType | None) -> None:
    """The byte in the wake-up descriptor says it all."""


def _chance() -> float:
    """Evenly spread over [0, 1), for the jitter of a backoff."""
    return int.from_bytes(os.urandom(4)) / (1 << 32)
