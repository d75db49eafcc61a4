"""A worker's saves: checked for space, announced, sealed; one that fails costs that save and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from outlast_jobs.contract import BUFFER_NAME, Field, Phase
from outlast_jobs.errors import AlreadySealed
from outlast_jobs.generation import GenerationName
from outlast_jobs.sealer import Sealer
from outlast_worker.buffer import Buffer, Buffers, aligned
from outlast_worker.context import RunContext
from outlast_worker.cost import Cost
from outlast_worker.flight import Outcome
from outlast_worker.imaging import Plan, Snapshot
from outlast_worker.linking import Links
from outlast_worker.meanwhile import Meanwhile, devices
from outlast_worker.notify import Notifier
from outlast_worker.noting import fill, note_down
from outlast_worker.saving import IndexFields, Saved, index_of, save_generation, seal_taken
from outlast_worker.shards import Place
from outlast_worker.space import shortage
from outlast_worker.yielding import beside


class Descriptions(msgspec.Struct, frozen=True):
    """What every index of this attempt says about where the state comes from."""

    fingerprint: dict[str, Any] = {}
    code: dict[str, Any] = {}
    config: dict[str, Any] = {}
    data: dict[str, Any] = {}


class Seals:
    """The generations that this attempt has sealed, and how it seals the next one."""

    def __init__(
        self,
        context: RunContext,
        notifier: Notifier,
        say: Callable[[str], None],
        on_sick: Callable[[int], None],
    ) -> None:
        self.newest: GenerationName | None = None
        """Newest generation that this attempt sealed."""
        self.descriptions = Descriptions()
        self._context = context
        self._notifier = notifier
        self._say = say
        self._on_sick = on_sick
        self.meanwhile = Meanwhile(say, Buffers(self._hand, self._release))
        self._links = Links() if context.link_unchanged else None
        self._size = (0, 0)
        self._litter = False  # a save failed, and may have left files that take room

    def expect(self, total_bytes: int, files: int) -> None:
        """How large the next save will be, about: as the last generation is."""
        self._size = (total_bytes, files)

    def seal(self, state: dict[str, Any], *, reason: str, final: bool, sick: bool) -> bool:
        """Seal this state; False where that failed and training must go on. Fenced where it must not."""
        step = state["counters"]["step"]
        again = self.newest is not None and self.newest.step == step
        # it may be there and not count: a save whose last fsync failed was never acknowledged, nor is it now
        there = os.path.lexists(self._context.checkpoints / str(GenerationName(step, self._context.attempt)))
        name = GenerationName(step, self._context.attempt, final=final and (again or there))
        started = time.monotonic()
        self._notifier.send({Field.PHASE: Phase.SAVE}, important=True)
        try:
            self._make_room()
            saved = save_generation(
                self._context.checkpoints,
                name,
                state,
                run_id=self._context.run_id,
                fields=self._fields(reason, healthy=not sick, final=final),
                progress=self._progress,
                load_back=self._is_first(),
                on_nan=None if sick else lambda: self._on_sick(step),
                links=self._links,
                apart=self._apart(),
                taken=self.meanwhile.taken(state, self._apart()),
            )
        except OSError as error:
            self._failed(error)
            self._say_failed(name, error)
            return False
        self._sealed(name, saved, started)
        return True

    def begin(
        self,
        state: dict[str, Any],
        *,
        reason: str,
        sick: bool,
        before: Callable[[], None],
        since: float,
        goes_on: Callable[[], None],
    ) -> bool:
        """Seal this state while the training goes on; False where `seal` has to do it. `before` is done first.

        ``since`` is when the training stopped for it, on the monotonic clock; ``goes_on`` is called when it need
        not any longer.
        What comes of it is told to the supervisor at once, and to the training by `settle`.
        """
        if self._is_first():  # that one is loaded back, and held against the state itself
            return False
        counters = dict(state["counters"])
        name = GenerationName(counters["step"], self._context.attempt)
        started = time.monotonic()
        # a training on another device leaves the processor's cores to who wants them
        trainers = torch.get_num_threads() if devices() is None else 1
        cost = Cost(trainers, since)

        def note(planned: Plan, buffer: Buffer) -> memoryview | None:
            fill(planned, buffer)
            with contextlib.suppress(Exception):  # without it the save goes on, and ends with us
                index = index_of(
                    name,
                    counters,
                    self._context.run_id,
                    self._fields(reason, healthy=not sick, final=False),
                    None,
                    0.0,
                )
                return note_down(planned, buffer, name, index, started)
            return None

        def write(
            planned: Plan,
            snapshot: Snapshot,
            meta: memoryview | None,
            confirmed: Callable[[], None],
            progress: Callable[[int], None],
        ) -> Saved:
            before()
            self._make_room()

            def right(_: Sealer, nan: bool) -> None:
                confirmed()
                if nan and not sick:
                    self._on_sick(name.step)

            return seal_taken(
                self._context.checkpoints,
                name,
                planned.taken,
                counters,
                run_id=self._context.run_id,
                fields=self._fields(reason, healthy=not sick, final=False),
                images=snapshot.images(),
                meta=meta,
                progress=progress,
                before_seal=right,
                began=started,
                links=self._links,
                threads=beside(trainers),
            )

        def landed(outcome: Outcome) -> None:
            if outcome.saved is not None:
                self._sealed(name, outcome.saved, started, cost)
            elif isinstance(outcome.error, OSError):
                self._failed(outcome.error)

        begun = self.meanwhile.begin(
            name.step,
            state,
            note,
            write,
            announce=lambda: self._notifier.send({Field.PHASE: Phase.SAVE}, important=True),
            goes_on=goes_on,
            report=lambda written: self._notifier.send({Field.SAVING: written}),
            landed=landed,
            cost=cost,
            apart=self._apart(),
        )
        cost.goes_on()
        return begun

    def settle(self, *, wait: bool) -> None:
        """Take in what became of the save in flight, or wait for that. Raises what `seal` would have raised."""
        flight = self.meanwhile.flight
        if flight is None:
            return
        if wait:
            self.meanwhile.close()
        elif flight.open or flight.outcome is None:
            return
        outcome = flight.wait()
        self.meanwhile.flight = None
        self.meanwhile.landed(flight)
        error = outcome.error
        if isinstance(error, OSError):
            self._say_failed(GenerationName(flight.step, self._context.attempt), error)
        elif error is not None:
            raise error

    def prepare(self, sizes: Sequence[int]) -> None:
        """Have memory ready for a copy of shards of these sizes, unless the supervisor says that there is none."""
        if not self._context.no_copy:
            self.meanwhile.buffers.prepare(aligned(sizes)[-1])

    def prepare_as_sealed(self) -> None:
        """The same, of the sizes of the newest generation's."""
        if self.newest is not None:
            with contextlib.suppress(OSError):
                files = (self._context.checkpoints / str(self.newest)).glob("*.shard-*.pt")
                self.prepare([file.stat().st_size for file in files])

    def _apart(self) -> frozenset[Place] | None:
        """What goes to shards of its own, so that they stay as they are: the parameters that are not trained."""
        return None if self._links is None else frozenset(self.meanwhile.frozen())

    def _hand(self, fd: int) -> None:
        """Have the supervisor keep the buffer too: what is copied there is not lost with us."""
        self._notifier.send({Field.FDSTORE: 1, Field.FDNAME: BUFFER_NAME}, important=True, fd=fd)

    def _release(self) -> None:
        self._notifier.send({Field.FDSTOREREMOVE: 1, Field.FDNAME: BUFFER_NAME}, important=True)

    def _is_first(self) -> bool:
        return self.newest is None and not _any_sealed(self._context.checkpoints)

    def _make_room(self) -> None:
        """OSError where the save won't fit."""
        if self._litter:
            Sealer.clear(self._context.checkpoints, self._context.attempt)
            self._litter = False
        short = shortage(self._context.checkpoints, *self._size)
        if short is not None:
            raise OSError(errno.ENOSPC, short)

    def _sealed(self, name: GenerationName, saved: Saved, started: float, cost: Cost | None = None) -> None:
        self.newest = name
        with contextlib.suppress(OSError):
            self.expect(saved.bytes, len(os.listdir(saved.path)))
        seconds = time.monotonic() - started
        fields: dict[str, object] = {
            Field.SEALED: name,
            Field.STEP: name.step,
            Field.BYTES: saved.bytes,
            Field.SECONDS: f"{seconds:.6f}",
        }
        if cost is not None:
            fields[Field.COST] = f"{min(cost.seconds(), seconds):.6f}"
        self._notifier.send(fields, important=True)

    def _fields(self, reason: str, *, healthy: bool, final: bool) -> IndexFields:
        what = self.descriptions
        return IndexFields(
            reason=reason,
            healthy=healthy,
            final=final,
            fingerprint=what.fingerprint,
            code=what.code,
            config=what.config,
            data=what.data,
        )

    def _progress(self, written: int) -> None:
        self._notifier.send_often({Field.SAVING: written})

    def _failed(self, error: Exception) -> None:
        self._litter = True
        self._notifier.send({Field.SAVE_FAILED: _why(error)}, important=True)

    def _say_failed(self, name: GenerationName, error: Exception) -> None:
        self._say(
            f'cannot save "{name}": {_why(error)}; training goes on unprotected, the next save is tried as usual'
        )


def _why(error: Exception) -> str:
    if isinstance(error, AlreadySealed):
        return "it is there already, from a try before this one or a save whose last fsync failed"
    return str(getattr(error, "strerror", None) or error)


def _any_sealed(checkpoints: Path) -> bool:
    """Whether the run has a generation: the first one of a run is loaded back once."""
    return any(GenerationName.parse(name) is not None for name in os.listdir(checkpoints))
