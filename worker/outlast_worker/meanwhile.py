"""Saving while the training goes on: what may be copied then, into which memory, and what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from outlast_worker.again import Again
from outlast_worker.buffer import Buffer, Buffers
from outlast_worker.cost import Cost
from outlast_worker.devices import DeviceFailed, Devices
from outlast_worker.flight import Crew, Flight, Outcome
from outlast_worker.imaging import Plan, Snapshot, into
from outlast_worker.layout import NoLayout
from outlast_worker.outliving import Outliving
from outlast_worker.saving import Saved
from outlast_worker.shards import Place, Taken
from outlast_worker.sources import Mode, Sources, Trust
from outlast_worker.transfers import Transfers

Write = Callable[[Plan, Snapshot, memoryview | None, Callable[[], None], Callable[[int], None]], Saved]
"""Writes and seals a snapshot, and ``meta.pt`` from where it lies already; the first call in it comes before the
seal, the second tells the bytes written."""
Note = Callable[[Plan, Buffer], memoryview | None]
"""Completes the images, and notes what they are; gives ``meta.pt`` where it lies in the buffer."""


class Meanwhile:
    """The saves of an attempt that do not stop the training; at most one is in flight."""

    def __init__(self, say: Callable[[str], None], buffers: Buffers | None = None) -> None:
        self.buffers = buffers or Buffers()
        self.flight: Flight | None = None
        self.redo: str | None = None
        """Why the next boundary has to be saved: what was in flight is discarded."""
        self._say = say
        self._crew = Crew()
        self._unchecked: int | None = None  # first step that was copied meanwhile since all was compared
        self._trust = Trust()
        self._again = Again()
        self._sources = Sources((), (), self._before_step)
        self._stepped = False  # an optimizer told so since the last save
        self._recorded = False  # the step of one is part of a CUDA graph
        self._failed = False  # a device may still write into the buffer

    def watch(
        self, optimizers: Sequence[torch.optim.Optimizer], modules: Sequence[torch.nn.Module] = ()
    ) -> None:
        """These optimizers tell before they step, and these modules may have parameters that nobody steps."""
        self._sources = Sources(optimizers, modules, self._before_step)
        if (found := devices()) is not None:
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            self.buffers.finish = found.pinning(tensor for group in groups for tensor in group["params"])

    def frozen(self) -> Mapping[Place, torch.Tensor]:
        """The parameters that are not trained, by their place in memory."""
        return self._sources.frozen()

    @property
    def step(self) -> int | None:
        """The step whose save is in flight and not discarded."""
        return self.flight.step if self.flight is not None and not self.flight.discarded else None

    def taken(self, state: Mapping[str, Any], apart: Collection[Place] | None) -> Taken | None:
        """A state as the one before was taken; None where this torch can't tell how its files will lie."""
        try:
            return self._again.plan(state, apart).taken
        except NoLayout:
            return None

    def begin(
        self,
        step: int,
        state: Mapping[str, Any],
        note: Note,
        write: Write,
        *,
        announce: Callable[[], None],
        goes_on: Callable[[], None],
        report: Callable[[int], None],
        landed: Callable[[Outcome], None],
        cost: Cost,
        apart: Collection[Place] | None = None,
    ) -> bool:
        """Copy what can't wait, and let a thread do the rest. False where there is no memory or no way for it.

        What lies at the places ``apart`` goes to shards of its own. NotLoadable names what would not load again.
        """
        if self.flight is not None:
            raise RuntimeError("a save is in flight: only one is at a time")
        try:
            planned = self._again.plan(state, apart)
        except NoLayout:
            return False
        buffer = None if self._failed else self.buffers.of(planned.size)
        if buffer is None:
            return False
        announce()
        self.redo = None
        found = buffer  # surely there
        outliving = Outliving(step, found, lambda: note(planned, found))  # what it held before is no copy now
        mode = self._trust.next()
        movable = {} if mode is Mode.AT_ONCE else self._sources.movable()
        try:
            snapshot = into(buffer, planned, mode, movable, self._transfers(buffer))
        except DeviceFailed as error:
            self._device_failed(f": {error}")
            return False
        flight = Flight(
            step,
            snapshot,
            outliving,
            lambda confirmed, progress: write(planned, snapshot, outliving.meta, confirmed, progress),
            report,
            landed,
            self._crew,
            cost,
        )
        goes_on()  # said before there is a thread more: it would take its turn while this one tells
        try:
            flight.start()
        except RuntimeError:  # no more threads for us
            return False
        self.flight = flight
        return True

    def close(self) -> None:
        """What was noted may change from here on. By the training's thread, before each update among others."""
        flight = self.flight
        if flight is None:
            return
        try:
            moved, differs = flight.close()
        except BaseException:  # out of a signal's handler; the script may well go on
            if flight.discarded:
                self.redo = f"the save of step {flight.step} is discarded: its copy was interrupted"
            raise
        if moved or differs:
            self._changed(flight, moved)
        elif flight.meanwhile and self._unchecked is None:
            self._unchecked = flight.step

    def landed(self, flight: Flight) -> None:
        """By the training's thread, once a save has ended: what could be known of it only then."""
        if flight.differed():
            self._changed(flight, moved=False)
        elif flight.failed:
            self._device_failed()
        elif flight.compared and not flight.told:
            self._unchecked = None

    def _before_step(self) -> None:
        """By an optimizer, before it steps."""
        self._stepped = True
        if (found := devices()) is None or not found.capturing():
            self.close()
        elif not self._recorded:  # it changes nothing now, and each time that the graph is replayed
            self._recorded = True
            self._say(
                "an optimizer's step is recorded in a CUDA graph, whose replays tell nobody: from now on a save "
                "copies what is on the device before the training's next work there"
            )

    def _transfers(self, buffer: Buffer) -> Transfers | None:
        """For what of a save lies on devices; none of it where they are not known, or record what is done."""
        stepped, self._stepped = self._stepped, False
        if (found := devices()) is None or found.capturing():
            return None
        target = torch.frombuffer(buffer.view, dtype=torch.uint8)
        return Transfers(found, target, pinned=buffer.pinned, lazily=stepped and not self._recorded)

    def _device_failed(self, why: str = "") -> None:
        self._failed = True
        self._say(f"a copy from a device failed{why}; from now on the training waits for each save")

    def _changed(self, flight: Flight, moved: bool) -> None:
        if flight.discarded:
            self.redo = (
                f"the save of step {flight.step} is discarded: weights were changed while it was copied"
            )
        old = ""
        if not moved and self._unchecked is not None:
            old = f"; saves since step {self._unchecked} may hold such changes"
        if self._sources.frozen_change(flight.changed()):
            self._say(
                "parameters that are not trained are changed between a boundary and the next update, first after "
                f"step {flight.step}: from now on a save copies them before training goes on{old}"
            )
            return
        if not moved:
            self._trust.differed()
        elif self._trust.changed():
            what = f"; {self.redo}, and the next boundary is saved instead" if self.redo else ""
            when = f"first after step {flight.step}"
            self._say(f"weights are changed between a boundary and the next update, {when}{what}")
        if self._trust.ended:
            self._say(
                f"{self._trust.ended}: from now on a save copies the whole state before training goes on{old}"
            )


def devices() -> Devices | None:
    """The devices whose streams we know; None where this process has not begun to use any."""
    if not torch.cuda.is_initialized():
        return None
    from outlast_worker import cuda  # not before it is of use

    return cuda.devices()
