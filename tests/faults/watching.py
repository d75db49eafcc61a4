"""What a long run uses, looked at again and again: memory, descriptors and disk; and whether any of it grows."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SETTLED = 2.0
"""Seconds from which on a supervisor has imported what it needs."""
GROWING = ("journal", "logs", "metrics")
"""Folders of a run directory that grow by design: a file an attempt or a life, a line an event or a step."""


@dataclass(frozen=True)
class Sample:
    """One look. Sizes are bytes."""

    life: int
    memory: int
    descriptors: int
    files: int  # in the run directory, without what grows by design
    size: int
    outside: int  # entries of the temporary folders


@dataclass
class Watch:
    """Collects samples of whichever supervisor runs."""

    run: Path
    outside: Sequence[Path]
    every: float  # seconds between two looks
    samples: list[Sample] = field(default_factory=list)
    _life: int = 0
    _settled: float = 0.0
    _next: float = 0.0

    def begin(self) -> None:
        """A supervisor starts."""
        self._life += 1
        self._settled = time.monotonic() + SETTLED

    def look(self, pid: int) -> None:
        """Take a sample where it is time for one; a process that is gone by now gives none."""
        now = time.monotonic()
        if now < max(self._settled, self._next):
            return
        self._next = now + self.every
        with contextlib.suppress(OSError):
            files, size = used(self.run, but=GROWING)
            outside = sum(used(path)[0] for path in self.outside)
            fds = len(os.listdir(f"/proc/{pid}/fd"))
            self.samples.append(Sample(self._life, resident(pid), fds, files, size, outside))


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used(folder: Path, but: Sequence[str] = ()) -> tuple[int, int]:
    """Entries below a folder, and their bytes; what goes away meanwhile is passed over."""
    number = size = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in but:
                continue
            number += 1
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    below = used(Path(entry.path))
                    number, size = number + below[0], size + below[1]
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return number, size


def thirds(samples: Sequence[Sample], of: Callable[[Sample], int]) -> tuple[float, float]:
    """The median in the first third of the samples, and in the last."""
    values = [of(sample) for sample in samples]
    third = max(len(values) // 3, 1)
    return statistics.median(values[:third]), statistics.median(values[-third:])


def longest_life(samples: Sequence[Sample]) -> list[Sample]:
    """Those of the supervisor that was looked at most often."""
    looks = Counter(sample.life for sample in samples)
    return [sample for sample in samples if sample.life == max(looks, key=looks.__getitem__)]
