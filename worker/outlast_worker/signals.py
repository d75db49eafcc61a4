"""Signals as flags: a handler notes that it was called and does nothing else; the boundary acts on it."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from msgspec import Struct

from outlast_jobs.contract import Env

_STDERR = 2
"""The stacks go to the attempt's log by descriptor: a script may have put anything in ``sys.stderr``."""


class SignalNames(Struct, frozen=True):
    """Which signal means what in this attempt."""

    save: signal.Signals = signal.SIGUSR1
    stop: signal.Signals = signal.SIGTERM
    stacks: signal.Signals = signal.SIGUSR2

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> SignalNames:
        """The signals that the supervisor named, or the usual ones."""
        usual = cls()
        return cls(
            save=_named(environ, Env.SIGNAL_SAVE, usual.save),
            stop=_named(environ, Env.SIGNAL_STOP, usual.stop),
            stacks=_named(environ, Env.SIGNAL_STACKS, usual.stacks),
        )


class Signals:
    """The handlers of one trainer. Python runs them between two byte codes, anywhere in the training step."""

    def __init__(self, names: SignalNames | None = None) -> None:
        self.names = names or SignalNames.from_env()
        self.stops = 0
        """Stop signals received so far: one save answers them all."""
        self.stopped_by = self.names.stop
        """The first of them."""
        self.saves = 0
        self._answered = 0
        self._owner = os.getpid()
        self._previous: dict[signal.Signals, Any] = {}
        self._ours: dict[signal.Signals, Any] = {}

    @property
    def save_requested(self) -> bool:
        return self.saves > self._answered

    def answer_saves(self) -> int:
        """Note that a save answers all requests made so far; how many they were."""
        count = self.saves - self._answered
        self._answered = self.saves
        return count

    def install(self) -> None:
        """Install the handlers, then let in what the supervisor kept blocked across exec."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "cannot install the signal handlers of the Checkpointer in a thread: Python delivers signals "
                "to the main thread only; enter the Checkpointer there"
            )
        self._owner = os.getpid()  # which may have been forked since this was made
        names = self.names
        self._ours = {names.save: self._handler(self._on_save), names.stop: self._handler(self._on_stop)}
        for number, handler in self._ours.items():
            self._previous[number] = signal.signal(number, handler)
        # of a soft limit (ulimit -St), whose hard one follows and kills
        if signal.getsignal(signal.SIGXCPU) is signal.SIG_DFL:
            self._previous[signal.SIGXCPU] = signal.signal(signal.SIGXCPU, self._handler(self._on_limit))
        atexit.register(self._at_exit)
        faulthandler.register(names.stacks, file=_STDERR, all_threads=True, chain=False)
        # In this order, since a save asked for while torch was being imported arrives at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {names.save, names.stop, names.stacks})

    def retake(self) -> list[str]:
        """Take back what the script, or a library of its, took after us: a stop would bring no save any more.

        Returns the names of these signals. To be called at boundaries, by the main thread; in another one, which can
        set no handler, nothing is done. It costs about a microsecond.
        """
        if threading.current_thread() is not threading.main_thread():
            return []
        lost = [number for number, ours in self._ours.items() if signal.getsignal(number) is not ours]
        for number in lost:
            signal.signal(number, self._ours[number])
        return [number.name for number in lost]

    def uninstall(self) -> None:
        """Give the signals back. The save signal is ignored: its default would end a script that is done."""
        for number, previous in self._previous.items():
            if number == self.names.save and previous in (signal.SIG_DFL, None):
                previous = signal.SIG_IGN
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()
        self._ours.clear()

    def ignore(self) -> None:
        """Heed no more: the last word is said, and a signal during the exit must not turn it into a death."""
        self._ours.clear()
        if threading.current_thread() is not threading.main_thread():
            return  # only that one can; at the exit it does
        for number in {self.names.save, self.names.stop, *self._previous}:
            signal.signal(number, signal.SIG_IGN)

    def _at_exit(self) -> None:
        """However the script ends: Python is about to give every handled signal its default, which is death."""
        if self._previous and os.getpid() == self._owner:
            self.ignore()

    def _on_save(self) -> None:
        self.saves += 1

    def _on_stop(self) -> None:
        self.stops += 1

    def _on_limit(self) -> None:
        if not self.stops:
            self.stopped_by = signal.SIGXCPU
        self.stops += 1

    def _handler(self, note: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def handle(_number: int, _frame: FrameType | None) -> None:
            # A forked child has inherited the handler, and clusters signal every process: not its business.
            if os.getpid() == self._owner:
                note()

        return handle


def _named(environ: Mapping[str, str], key: str, default: signal.Signals) -> signal.Signals:
    text = environ.get(key, "").strip().upper()
    if not text:
        return default
    name = text if text.startswith("SIG") else f"SIG{text}"
    try:
        return signal.Signals[name]
    except KeyError:
        raise ValueError(
            f'cannot use the signal "{text}" of {key}: no such signal; name one like SIGUSR1'
        ) from None
