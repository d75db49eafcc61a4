"""A short real training of the toy: undisturbed, cut at any call of one save, and resumed to the same end."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.harness import PATIENCE, Run, light
from tests.e2e.reference import TOY
from tests.faults.forked import attach_at
from tests.faults.marks import PLACE
from tests.faults.points import Outcome
from tests.waiting import wait_until

from outlast_jobs.look import Verdict

STEPS, EVERY = 12, 4
SAVES = {"first": 1, "second": 2, "last": 3}
"""The first is loaded back, the last says that the training is done."""

_MARKED = Path(__file__).parent / "scripts" / "marked.py"
_LEFT = ("ended", "said", "trace")  # by each try
_COMPARED = ("step", "loss", "lr", "rng", "ids", "epoch", "batch")


@dataclass(frozen=True)
class End:
    """What a training came to: the digest of its state, and what each step did."""

    state_sha256: str | None
    steps: list[dict[str, Any]]


@dataclass
class Yard:
    """Where trainings run."""

    folder: Path
    runs: list[Run] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    def run(self, save: int = 0, place: Path | None = None) -> Run:
        """A new one. With a place its save of that number is an operation between marks."""
        words = ["--steps", STEPS, "--step-seconds", 0, "--samples", 64, "--batch", 8, "--workers", 0]
        words += ["--ballast", 1_200_000]  # enough to be written past the page cache
        env = {"OUTLAST_RECORD_IDS": "1", "OMP_NUM_THREADS": "1", **light()}
        job = {
            "name": "toy",
            "command": ["{python}", str(_MARKED), str(save), TOY, *map(str, words)],
            "env": env,
            "save": {"every_steps": EVERY},
        }
        more = {PLACE: str(place)} if place else {}
        run = Run(self.folder / f"{next(self._numbers):04d}", job, env=more)
        self.runs.append(run)
        return run

    def close(self) -> None:
        """End everything."""
        for run in self.runs:
            run.close()


class Halted:
    """A training that stands before one of its saves, which forks of its trainer carry out, one after another.

    Its supervisor is stopped: where a fork is killed the disk is as if both had died there.
    """

    def __init__(self, yard: Yard, save: int) -> None:
        self._yard = yard
        self._place = yard.folder / f"place-{len(yard.runs)}"
        self.run = yard.run(save, self._place)
        self._supervisor = self.run.start()
        self._supervisor.until(self._place.exists, "the save")
        self._supervisor.send(signal.SIGSTOP)
        self._number = 0
        self._before = set(self.run.generations())

    def traced(self, options: Sequence[str], *, kills: bool) -> Outcome:
        """The save once more, from the same state of the trainer and the disk."""
        self._reset()
        self._number += 1
        mine = f"{self._place}-{self._number}"
        Path(f"{mine}.ask").touch()
        strace = attach_at(Path(mine), options, Path(f"{mine}.trace"))
        strace.communicate(timeout=PATIENCE)
        wait_until(Path(f"{mine}.ended").exists, PATIENCE, "the end of a save")
        code, said, trace = (Path(f"{mine}.{what}").read_text(errors="replace") for what in _LEFT)
        return Outcome(int(code), said, self.run.log(), trace.splitlines())

    def copy(self) -> Run:
        """What is on the disk now, as a run of its own. It can be started when this one is closed."""
        run = self._yard.run()
        shutil.copytree(self.run.directory.path, run.directory.path, symlinks=True)
        return run

    def disk(self) -> frozenset[tuple[str, int]]:
        """What a start can tell apart: which files are there and how long they are; an index holds times as text."""
        top = self.run.directory.checkpoints
        found = ((path, path.is_file() and path.stat().st_size) for path in top.rglob("*"))
        return frozenset(
            (str(p.relative_to(top)), min(size, 1 if "index" in p.name else size)) for p, size in found
        )

    def close(self) -> None:
        """Trainer and supervisor die."""
        self.run.close()

    def _reset(self) -> None:
        """Take away what the last try left."""
        for path in self.run.directory.checkpoints.glob(".writing-*/*"):
            shutil.rmtree(path)
        for path in set(self.run.generations()) - self._before:
            shutil.rmtree(path)


def resume(run: Run) -> End:
    """Start it, as a person or a scheduler would, and wait for its end."""
    code = run.start().wait()
    assert code == 0, f"it ended with {code}\n{run.report()}"
    run.nothing_left()
    return end_of(run)


def end_of(run: Run) -> End:
    """What a training that is done came to."""
    index = run.verified()[0].index
    assert index is not None
    assert (index.step, index.final) == (STEPS, True), run.report()
    return End(index.state_sha256, [{key: line.get(key) for key in _COMPARED} for line in run.history()])


def all_whole(run: Run) -> list[str]:
    """Names of what is published, newest first; AssertionError where anything of it is not whole."""
    bad = [finding for finding in run.findings() if finding.verdict is not Verdict.VERIFIED]
    assert not bad, bad
    return [path.name for path in run.generations()]
