"""The run that nothing disturbs, and how another run is held against it: to the last bit."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Run, light

from outlast_jobs.jobfile import resolve_job
from outlast_jobs.look import Finding

TOY = str(resolve_job("toy").with_name("train.py"))
SAMPLES = 480
BATCH = 8
EPOCH = SAMPLES // BATCH
STEPS = 390
"""Six epochs and a half: cuts fall into all of them."""
STEP_SECONDS = 0.005

_SEED = "OUTLAST_E2E_SEED"
_RUNS_LONG = 150.0
_COMPARED = ("step", "loss", "lr", "rng", "ids", "epoch", "batch")


def toy(*args: object, workers: int = 2, **sections: Any) -> dict[str, Any]:
    """A job file for the shipped toy, always the same training, with these sections and further arguments."""
    words = ["--steps", STEPS, "--step-seconds", STEP_SECONDS, "--samples", SAMPLES, "--batch", BATCH]
    command = ["{python}", TOY, *words, "--workers", workers, *args]
    return {"name": "toy", "command": [str(word) for word in command], **_RECORDING, **sections}


_RECORDING = {"env": {"OUTLAST_RECORD_IDS": "1", "OMP_NUM_THREADS": "1", **light()}}


@dataclass(frozen=True)
class Reference:
    """What the training comes to when nothing happens: each step's line, and the state at each boundary."""

    lines: Mapping[int, Mapping[str, Any]]
    generations: Mapping[int, Finding]
    state_sha256: str

    @classmethod
    def of(cls, run: Run) -> Reference:
        """Read it from a run with a generation of every step."""
        lines = {line["step"]: _compared(line) for line in run.history()}
        generations = {f.index.step: f for f in run.verified() if f.index is not None}
        final = generations[STEPS].index
        if sorted(lines) != _ALL_STEPS or sorted(generations) != _ALL_STEPS or final is None:
            raise AssertionError(f"the reference run is not whole\n{run.report()}")
        if not final.state_sha256:
            raise AssertionError("the reference run's last generation has no state_sha256")
        return cls(lines, generations, final.state_sha256)

    def hold_lines(self, run: Run) -> None:
        """All that any attempt ever recorded is what the undisturbed run did in that step."""
        for attempt in run.attempts():
            for line in run.metrics(attempt):
                assert _compared(line) == self.lines[line["step"]], f"attempt {attempt}\n{run.report()}"

    def hold_history(self, run: Run) -> None:
        """The history has each step once, as the undisturbed run, and each epoch each sample once."""
        history = run.history()
        assert [line["step"] for line in history] == _ALL_STEPS, run.report()
        assert [_compared(line) for line in history] == [self.lines[step] for step in _ALL_STEPS]
        ids = [sample for line in history for sample in line["ids"]]
        for begin in range(0, len(ids) - SAMPLES + 1, SAMPLES):
            assert sorted(ids[begin : begin + SAMPLES]) == list(range(SAMPLES))
        assert len(set(ids[len(ids) // SAMPLES * SAMPLES :])) == len(ids) % SAMPLES

    def hold_state(self, finding: Finding) -> None:
        """A generation holds the state that the undisturbed run had at that boundary."""
        assert finding.index is not None, finding.reason
        same = self.generations[finding.index.step]
        assert same.index is not None
        if finding.index.files != same.index.files:  # the same bytes are the same state; others may be
            assert digest(finding.path) == digest(same.path), finding.path

    def hold_end(self, run: Run) -> None:
        """The run is complete, came to the same state by the same steps, and left no process and no litter."""
        newest = run.verified()[0].index
        assert newest is not None
        assert (newest.step, newest.final) == (STEPS, True), run.report()
        assert newest.state_sha256 == self.state_sha256, run.report()
        self.hold_history(run)
        self.hold_lines(run)
        run.nothing_left()
        others = {p.name for p in run.directory.checkpoints.iterdir()} - {p.name for p in run.generations()}
        assert others <= {f".writing-{run.attempts()[-1]:04d}"}, "leftovers of attempts that were cut"


_ALL_STEPS = list(range(1, STEPS + 1))


def digest(generation: Path) -> str:
    """The state_sha256 of what is loaded from a generation."""
    from outlast_worker.restoring import digest_generation  # torch takes a while

    return digest_generation(generation)


def make_reference(folder: Path) -> Reference:
    """Run it in this folder, or read it where another test process has; whoever comes second waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = Run(folder / "run", toy(save={"every_steps": 1}, keep={"last": 10 * STEPS}))
        try:
            if not (folder / "done").exists():
                code = run.start().wait(_RUNS_LONG)
                if code != 0:
                    raise AssertionError(f"the reference run ended with {code}\n{run.report()}")
                (folder / "done").touch()
            return Reference.of(run)
        finally:
            run.close()


@functools.cache
def seed() -> int:
    """What the random instants are drawn from: always the same, or what OUTLAST_E2E_SEED says."""
    return int(os.environ.get(_SEED, "20240229"))


def chance(request: pytest.FixtureRequest) -> random.Random:
    """A test's own random instants; the seed is in the output that pytest shows of a failed test."""
    print(f"random instants of seed {seed()}; others with {_SEED}=N")
    return random.Random(f"{seed()} {request.node.name}")


def pause(seconds: float) -> None:
    """Let a random time pass: the instant is what the test is about, nothing is waited for."""
    if seconds > 0:
        time.sleep(seconds)


def _compared(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line.get(key) for key in _COMPARED}
