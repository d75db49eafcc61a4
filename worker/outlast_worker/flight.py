"""One save in flight: copied, written and sealed by a thread of its own while the training goes on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from outlast_worker.cost import Cost
from outlast_worker.imaging import Snapshot
from outlast_worker.outliving import Outliving
from outlast_worker.saving import Saved
from outlast_worker.window import Copying, Interrupted, differing, same
from outlast_worker.yielding import Yielding

_REPORT_EVERY = 0.2  # seconds


class Changed(Exception):
    """What was copied is not the boundary's state: weights were changed in the meantime."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a save."""

    saved: Saved | None = None
    changed: bool = False
    error: BaseException | None = None


class Flight:
    """From a boundary on. The training's thread calls `close` before anything that was noted may change.

    So does any other thread in which an optimizer is stepped.
    """

    def __init__(
        self,
        step: int,
        snapshot: Snapshot,
        outliving: Outliving,
        write: Callable[[Callable[[], None], Callable[[int], None]], Saved],
        report: Callable[[int], None],
        landed: Callable[[Outcome], None],
        crew: Crew,
        cost: Cost,
    ) -> None:
        self.step = step
        self.outcome: Outcome | None = None
        self.open = True
        """Whether `close` still has something to do."""
        self._snapshot = snapshot
        self._outliving = outliving
        self._write = write
        self._report = report
        self._landed = landed
        self._copying = Copying(snapshot.meanwhile)
        self._transfers = snapshot.transfers
        self._settled = threading.Event()  # what was copied is known to be right, or known not to be
        self._good = False
        self._closing = threading.RLock()
        self._lock = threading.RLock()  # the training's thread may be told to look while it has it
        self._word = None if self.meanwhile else True
        """The training's thread's, that nothing was changed under what was left to be copied."""
        self.told = False
        """Whether `close` found that something was changed."""
        self._reported = 0.0
        self._yielding = Yielding()
        self._crew = crew
        self._cost = cost
        self._ended = threading.Event()
        self._owner = os.getpid()
        self._settle()

    def start(self) -> None:
        """Begin. RuntimeError where no thread can be had."""
        self._crew.carry(self._run)

    def close(self) -> tuple[bool, bool]:
        """End the copy, helping with it or waiting for who ends it, and see whether the sources kept still.

        Whether versions moved, and whether bytes changed without that. Either is said once.
        """
        if (
            os.getpid() != self._owner
        ):  # forked meanwhile: it has none of the threads, and the trainer's own memory
            return False, False
        with self._closing:
            if not self.open:
                self._transfers.hold_back()  # this update may be on another stream than the one before
                return False, False
            with self._cost.standing():
                try:
                    return self._close()
                except BaseException:
                    # a signal's handler has raised it: what was not seen to be right is not
                    self._settle(False)
                    raise

    def _close(self) -> tuple[bool, bool]:
        self.open = False
        self._copying.finish()
        self._transfers.close()
        snapshot = self._snapshot
        if self._word and not self.discarded and not self.compared:
            return False, False
        moved = any(watched.changed for watched in snapshot.watched)
        kept = same(snapshot.rehearsed) if snapshot.rehearsed else snapshot.probe.found_again()
        kept = kept and (not self._transfers.arrived or self._transfers.kept())
        if self._word is None:
            self._settle(kept and not moved)
        self.told = moved or not kept
        return moved, not kept and not moved

    def changed(self) -> list[torch.Tensor]:
        """Right after `close` has found a change: what was changed, as far as can be told."""
        snapshot = self._snapshot
        moved = [watched.tensor for watched in snapshot.watched if watched.changed]
        if moved or not self._transfers.kept():
            return moved
        return differing(snapshot.rehearsed) if snapshot.rehearsed else snapshot.probe.lost()

    def differed(self) -> bool:
        """Once it has ended: whether bytes changed unseen, where `close` could not tell it yet."""
        return self._transfers.arrived and not self.told and not self._transfers.unchanged()

    @property
    def failed(self) -> bool:
        """Whether a device failed under it, which may still write into the buffer."""
        return self._transfers.failed

    @property
    def compared(self) -> bool:
        """Whether all of what could have changed unseen is compared."""
        return bool(self._snapshot.rehearsed or self._transfers.compared)

    @property
    def meanwhile(self) -> bool:
        """Whether anything was left to be copied while the training went on."""
        return bool(self._snapshot.meanwhile or self._transfers.open)

    @property
    def discarded(self) -> bool:
        """Whether it will not be sealed, since weights were changed under it."""
        return self._settled.is_set() and not self._good

    def wait(self) -> Outcome:
        """Wait for its end, which holds up the training."""
        with self._cost.standing():
            self._ended.wait()
        return self.outcome or Outcome(error=RuntimeError("the thread that saves ended without a word"))

    def _run(self) -> None:
        self._cost.begins_work()
        try:
            self._outliving.note_down()
            self._copying.finish()
            self._transfers.arrive()
            self._settle()
            if not self._settled.is_set():
                between_operations(self._look)
            self._yielding.begin()
            outcome = Outcome(saved=self._write(self._confirmed, self._progress))
        except (Changed, Interrupted):
            outcome = Outcome(changed=True)
        except BaseException as error:  # the training's thread takes it in at its next boundary
            outcome = Outcome(error=error)
        self._yielding.end()
        self._cost.works()
        self._outliving.ended(sealed=outcome.saved is not None)
        try:
            self._landed(outcome)  # which waits for a while where the supervisor reads nothing
        finally:
            self.outcome = outcome  # not before: the training's thread waits for nothing but an end
            self._ended.set()

    def _progress(self, written: int) -> None:
        if self.discarded:
            raise Changed
        self._yielding.look()
        self._cost.works()
        now = time.monotonic()
        if now - self._reported >= _REPORT_EVERY:
            self._reported = now
            self._report(written)

    def _confirmed(self) -> None:
        """Before the seal: nothing gets a name of which the training's thread has not said that it is right."""
        self._settled.wait()
        if not self._good:
            raise Changed

    def _look(self) -> None:
        """By the training's thread, soon after the copy's end: it need not wait for the next update to be right."""
        if not self.open or self._settled.is_set():
            return
        snapshot = self._snapshot
        with self._cost.standing():
            if not any(watched.changed for watched in snapshot.watched) and snapshot.probe.found_again():
                self._settle(True)

    def _settle(self, word: bool | None = None) -> None:
        """Known to be wrong by the word of the training's thread; right by that and what has arrived."""
        with self._lock:
            self._word = self._word if word is None else word
            if self._settled.is_set() or self._word is None or (self._word and not self._transfers.arrived):
                return
            self._good = self._word and self._transfers.kept()
            self._settled.set()
        if self._good:
            self._outliving.right()


class Crew:
    """The thread that carries saves, one after another; begun with the first, and anew where a fork has none."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def carry(self, job: Callable[[], None]) -> None:
        """Have this done. RuntimeError where no thread can be had."""
        if self._thread is None or not self._thread.is_alive():
            self._jobs = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(self._jobs,), name="outlast-save", daemon=True)
            thread.start()
            self._thread = thread
        self._jobs.put(job)

    @staticmethod
    def _work(jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            job = jobs.get()
            with contextlib.suppress(Exception):  # what matters of it is in the outcome
                job()
            del job  # and with it the memory that it held


_waiting: list[Any] = []  # what the interpreter still has to call may not be freed


def between_operations(call: Callable[[], None]) -> None:
    """Have the main thread call this soon, when it is in no operation of torch's: as it does with signal handlers."""

    def pending(_: Any) -> int:
        with contextlib.suppress(ValueError):
            _waiting.remove(callback)
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_name.startswith("__torch_"):  # Python within an operation
                return 0
        call()
        return 0

    callback = _CALLBACK(pending)
    _waiting.append(callback)
    if ctypes.pythonapi.Py_AddPendingCall(callback, None) != 0:
        _waiting.remove(callback)


_CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
