"""A worker's saves: checked for space, announced, sealed; one that fails costs that save and nothing else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast_jobs.contract import Field, Phase
from outlast_jobs.errors import AlreadySealed
from outlast_jobs.generation import GenerationName
from outlast_jobs.sealer import Sealer
from outlast_worker.context import RunContext
from outlast_worker.notify import Notifier
from outlast_worker.saving import IndexFields, save_generation
from outlast_worker.snapshot import has_nan
from outlast_worker.space import shortage


@dataclass(frozen=True, slots=True)
class Descriptions:
    """What every index of this attempt says about where the state comes from."""

    fingerprint: dict[str, Any] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


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
        if self._litter:
            Sealer.clear(self._context.checkpoints, self._context.attempt)
            self._litter = False
        short = shortage(self._context.checkpoints, *self._size)
        if short is not None:
            return self._failed(name, short)
        if not sick and has_nan(state["parts"]):
            sick = True
            self._on_sick(step)
        try:
            saved = save_generation(
                self._context.checkpoints,
                name,
                state,
                run_id=self._context.run_id,
                fields=self._fields(reason, healthy=not sick, final=final),
                progress=self._progress,
                load_back=self.newest is None and not _any_sealed(self._context.checkpoints),
            )
        except AlreadySealed:
            return self._failed(name, "it is there already, from a save whose last fsync failed")
        except OSError as error:
            return self._failed(name, str(error.strerror or error))
        self.newest = name
        with contextlib.suppress(OSError):
            self.expect(saved.bytes, len(os.listdir(saved.path)))
        self._notifier.send(
            {
                Field.SEALED: name,
                Field.STEP: step,
                Field.BYTES: saved.bytes,
                Field.SECONDS: f"{time.monotonic() - started:.6f}",
            },
            important=True,
        )
        return True

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

    def _failed(self, name: GenerationName, why: str) -> bool:
        self._litter = True
        self._notifier.send({Field.SAVE_FAILED: why}, important=True)
        self._say(
            f'cannot save "{name}": {why}; training goes on unprotected, the next save is tried as usual'
        )
        return False


def _any_sealed(checkpoints: Path) -> bool:
    """Whether the run has a generation: the first one of a run is loaded back once."""
    return any(GenerationName.parse(name) is not None for name in os.listdir(checkpoints))
