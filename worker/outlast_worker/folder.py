"""A folder of checkpoints for a script without a supervisor: saved when due, the last few kept, the newest found."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outlast_jobs import durable, retention
from outlast_jobs.cadence import SavePolicy, due
from outlast_jobs.errors import Corrupt, Incomplete
from outlast_jobs.generation import GenerationName
from outlast_jobs.look import Finding, Verdict, look
from outlast_jobs.sidecar import CHECKPOINT, digest_file, look_file, make_folder, scan_files
from outlast_jobs.verify import scan
from outlast_worker.sharded import load_sharded_checkpoint, save_sharded_checkpoint
from outlast_worker.sharding import Strategy
from outlast_worker.single import load_checkpoint, save_checkpoint
from outlast_worker.trainstate import TrainState


@dataclass(frozen=True)
class Keep:
    """What stays: the ``last`` ones, one for each ``every_steps``, and no more than ``max_bytes`` of them."""

    last: int = 3
    every_steps: int | None = None
    max_bytes: int | None = None


class CheckpointFolder:
    """The checkpoints of one run, written by one process at a time; for a script without a supervisor.

    Saves every ``every_steps`` steps or ``every_seconds`` seconds, whichever comes first. Checkpoints are single
    files, or sharded where ``strategy`` says how. What an earlier process left unfinished is removed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: Keep = Keep(),
        strategy: Strategy | None = None,
        num_shards: int | None = None,
    ) -> None:
        self.path = Path(folder)
        self._steps, self._seconds = every_steps, every_seconds
        self._keep, self._strategy, self._num_shards = keep, strategy, num_shards
        make_folder(self.path)
        self._sweep()
        names = [name for path in self.checkpoints() if (name := _name(path)) is not None]
        self._attempt = max((name.attempt for name in names), default=0) + 1
        self._whole: set[Path] = set()  # those that this process saved or read in full
        self._resumed: Path | None = None
        self._last_step, self._last_time = 0, time.monotonic()
        self._saved = False

    def checkpoints(self) -> list[Path]:
        """All that is here, whatever it is worth, newest first: later processes first, then later steps."""
        files = [path for path in scan_files(self.path) if _name(path) is not None]
        return sorted([*scan(self.path), *files], key=_order, reverse=True)

    def verify(self) -> list[Finding]:
        """Every checkpoint here read in full: which are whole, which are not, and why."""
        return [_look(path) for path in self.checkpoints()]

    def resume(self, model: Any, optimizer: Any = None, scheduler: Any = None, **options: Any) -> TrainState:
        """Load the newest checkpoint that is whole, and say which newer ones are not; a new state if none is here.

        ``options`` are those of load_checkpoint. If there are checkpoints and none is whole, that is Corrupt:
        the run does not begin anew in silence.
        """
        found = self.checkpoints()
        for path in found:
            load = load_sharded_checkpoint if path.is_dir() else load_checkpoint
            try:
                state = load(path, model, optimizer, scheduler, **options)
            except (Corrupt, Incomplete) as error:  # found before anything was changed
                print(f"outlast: passed over {path.name}: {error}", file=sys.stderr, flush=True)
                continue
            self._resumed = path
            self._whole.add(path)
            self._last_step, self._last_time = state.step, time.monotonic()
            return state
        if found:
            raise Corrupt(
                f"none of {len(found)} checkpoints in {str(self.path)!r} is whole; to begin anew, move them away"
            )
        return TrainState()

    def due(self, step: int) -> str | None:
        """Why the state after ``step`` is to be saved; None if it need not be."""
        policy = SavePolicy(self._steps, self._seconds, restarted=self._resumed is not None)
        found = due(step, time.monotonic(), self._last_step, self._last_time, policy, self._saved)
        return None if found is None else found.reason

    def save(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        state: TrainState,
        *,
        parts: Mapping[str, Any] | None = None,
        code: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Path:
        """Save now, then drop what is not to be kept. Saved already at this step, it is left as it is."""
        name = str(GenerationName(state.step, self._attempt))
        path = self.path / (name if self._strategy else name + CHECKPOINT)
        if path in self._whole:
            return path
        self._last_step, self._last_time = state.step, time.monotonic()
        save: Callable[..., object] = save_checkpoint
        if self._strategy:
            save = partial(save_sharded_checkpoint, strategy=self._strategy, num_shards=self._num_shards)
        save(model, optimizer, scheduler, state, path, parts=parts, code=code, data=data)
        self._saved = True
        self._whole.add(path)
        self.prune()
        return path

    def prune(self) -> list[Path]:
        """Drop what the policy does not keep; never the newest whole one, nor the one resumed from."""
        found = {str(name): path for path in self.checkpoints() if (name := _name(path)) is not None}
        gens = [self._gen(path) for path in found.values()]
        resumed = _name(self._resumed) if self._resumed is not None else None
        plan = retention.plan(gens, self._keep, (), str(resumed) if resumed else None, True)
        dropped = [found[entry.name] for entry in plan.drop]
        for path in dropped:
            _remove(path, self.path)
        return dropped

    def _gen(self, path: Path) -> retention.Gen:
        finding = _look(path, full=path not in self._whole)
        whole = finding.verdict is Verdict.VERIFIED
        if whole:
            self._whole.add(path)
        healthy = finding.index is None or finding.index.healthy
        name = _name(path) or GenerationName(0, 1)
        return retention.Gen(name, whole, healthy, finding.bytes)

    def _sweep(self) -> None:
        for entry in os.listdir(self.path):
            if entry.startswith((durable.TEMPORARY, durable.TRASH)):
                durable.delete_tree(self.path / entry)


def _name(path: Path) -> GenerationName | None:
    return GenerationName.parse(path.name.removesuffix(CHECKPOINT))


def _order(path: Path) -> tuple[int, int]:
    name = _name(path)
    return (name.attempt, name.step) if name is not None else (0, 0)


def _look(path: Path, *, full: bool = True) -> Finding:
    if path.name.endswith(CHECKPOINT):
        return look_file(path, full=full)
    return look(path, None, full=full)


def _remove(path: Path, folder: Path) -> None:
    for target in (path, digest_file(path)) if path.name.endswith(CHECKPOINT) else (path,):
        if os.path.lexists(target):
            durable.remove_tree(target, folder)
