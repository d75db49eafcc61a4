"""What the run's own past says of its steps, its saves and its generations."""

from __future__ import annotations

import contextlib
import itertools
import os

from msgspec import Struct

from outlast_jobs import pacing
from outlast_jobs.cadence import DOUBLED
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName
from outlast_jobs.history import History
from outlast_jobs.metrics import attempts, read_metrics
from outlast_jobs.rundir import RunDirectory

MANY = 500  # steps of the newest attempts that are looked at


class Past(Struct, frozen=True):
    """Seconds and bytes; None where the run has not shown it yet."""

    step: float | None = None  # 95th percentile
    save: float | None = None  # 95th percentile
    size: int | None = None  # of the largest generation that is known
    files: int | None = None
    there: int = 0  # generations on disk
    up: float | None = None  # mean time from an attempt's start to its end, of those that trained
    paced: pacing.Past = pacing.Past()  # what an automatic cadence goes by
    script: bool = False  # its script saves by itself, of which a run shows nothing

    @property
    def need(self) -> float | None:
        """Seconds that a step and a save may take, as the deadline counts them."""
        if self.step is None or self.save is None:
            return None
        return DOUBLED * (self.step + self.save)

    @property
    def told(self) -> str:
        """The need in words."""
        return f"a step takes {self.step:.2g} s and a save {self.save:.2g} s, doubled {self.need:.2g} s"


def past(run: RunDirectory, known: History) -> Past:
    """Read it from the journal, the newest metrics and the generations."""
    saves = [s.seconds for s in known.sealed.values() if s.seconds is not None]
    sizes = [s.bytes for s in known.sealed.values() if s.bytes]
    names = _generations(run)
    files = [count for name in names if (count := _count(run, name))]
    return Past(
        step=p95(_steps(run)),
        save=p95(saves),
        size=max(sizes, default=None),
        files=max(files, default=None),
        there=len(names),
        up=_mean_life(known),
        paced=known.past,
    )


def _mean_life(known: History) -> float | None:
    """Of attempts that trained, from the start to an end before the run's: what a cadence has to be shorter than."""
    lives = [
        attempt.ended - attempt.started
        for attempt in known.attempts
        if attempt.attached is not None and attempt.ended is not None and attempt.outcome != "done"
    ]
    return sum(lives) / len(lives) if lives else None


def p95(values: list[float]) -> float | None:
    """The value below which nineteen of twenty lie; None without any."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))] if values else None


def _steps(run: RunDirectory) -> list[float]:
    """Seconds between the lines of the newest attempt that wrote some."""
    with contextlib.suppress(OSError, IntegrityError):
        for attempt in sorted(attempts(run), reverse=True):
            times = [
                float(line["t"])
                for line in read_metrics(run.attempt_metrics(attempt)).lines[-MANY:]
                if isinstance(line.get("t"), (int, float))
            ]
            if len(times) > 1:
                return [b - a for a, b in itertools.pairwise(times) if b >= a]
    return []


def _generations(run: RunDirectory) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(run.checkpoints) if GenerationName.parse(name) is not None]
    return []


def _count(run: RunDirectory, name: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(run.checkpoints / name))
    return 0
