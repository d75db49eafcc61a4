"""A soak: for half an hour a kill every few seconds, in heaps as on real machines; then the run is as it should be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.e2e.harness import Run
from tests.faults.scale import chance, scaled, told
from tests.faults.soak import FINISH, Scale, Soak, hold_lines, last_state, undisturbed
from tests.faults.watching import GROWING, Sample, longest_life, thirds, used

MINUTES = float(os.environ.get("OUTLAST_SOAK_MINUTES", scaled("0.25", "30")))
SCALE = Scale(MINUTES * 60, 0.25, 4.0) if MINUTES >= 5 else Scale(MINUTES * 60, 0.05, 1.5)
MIB = 1 << 20
MORE_MEMORY = 4 * MIB  # what is imported when it is first needed takes more than half of it
"""How much the median of the last third may be above that of the first: over all supervisors, and of the
one that lived longest."""
MORE_DESCRIPTORS = 1
MOST_FILES, MORE_SIZE, FULL = 80, 64 << 10, 256 << 10
"""In the run directory, without what grows by design: three generations, some in the making or on their way
out, and those that supervisors which were killed right away had no time to prune. What stays is held by the thirds."""
MOST_OUTSIDE = 12
"""Entries in the folders for sockets and temporary files: of a supervisor and a trainer, and of two of each that were
killed right after each other."""
LOG, JOURNAL, LINE, SAVE = 8 << 10, 8 << 10, 1 << 10, 2 << 10
"""Bytes at most, on average: of a log an attempt, of a journal an attempt or life, of metrics a step; and of the
journal a save."""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        yield Path(folder)


@pytest.mark.timeout(MINUTES * 60 + 2 * FINISH)
def test_a_run_under_kills_in_bursts_ends_the_same_and_nothing_grows(
    tmp_path: Path, short: Path, runs: list[Run]
) -> None:
    """Struck every few seconds for long, a run ends bit for bit as it should; memory, descriptors, disk stay flat."""
    reference = Run(tmp_path / "reference", SCALE.job(step_seconds=0, save={"every_steps": 10_000}))
    runs.append(reference)
    lines, digest = undisturbed(reference, FINISH)
    soak = Soak(tmp_path, short, SCALE, chance("soak"))
    runs.append(soak.run)
    soak.suffer()
    samples = soak.watch.samples
    tell(soak, samples)
    assert soak.finish() == 0, soak.run.report()
    assert last_state(soak.run).state_sha256 == digest
    assert len(lines) == SCALE.steps
    hold_lines(soak.run, lines)
    soak.run.nothing_left()
    assert not (found := grown(samples)), found
    assert not (found := grown_by_design(soak, len(lines))), found


def flat(number: int, **changed: int) -> Sample:
    """A look at something that does not grow, or not but for this."""
    return Sample(
        **{
            "life": 1,
            "memory": 30 * MIB + number % 7 * 1000,
            "descriptors": 15 + number % 3,
            **_DISK,
            **changed,
        }
    )


_DISK = {"files": 20, "size": 90_000, "outside": 3}


@pytest.mark.parametrize(
    ("what", "by"), [("memory", 100_000), ("descriptors", 1), ("files", 1), ("size", 5_000), ("outside", 1)]
)
def test_growth_would_be_seen(what: str, by: int) -> None:
    """Where any of what is watched grows a little from look to look it is named; else nothing is."""
    samples = [flat(number) for number in range(100)]
    assert not grown(samples)
    growing = [
        flat(number, **{what: getattr(sample, what) + by * number}) for number, sample in enumerate(samples)
    ]
    assert len(grown(growing)) == (2 if what == "memory" else 1)


def tell(soak: Soak, samples: Sequence[Sample]) -> None:
    """The figures."""
    told(f"strikes in {MINUTES:g} minutes: {dict(sorted(soak.struck.items()))}", soak.struck.total())
    step = soak.run.history()[-1]["step"]
    print(f"in a save: {soak.in_a_save}")
    print(f"attempts: {len(soak.run.attempts())}; supervisors: {soak.starts}; step: {step} of {SCALE.steps}")
    memory, files = thirds(samples, lambda s: s.memory), thirds(samples, lambda s: s.descriptors)
    print(f"looks: {len(samples)}; memory: {memory[0] / MIB:.1f} MiB at first, {memory[1] / MIB:.1f} at last")
    life = thirds(longest_life(samples), lambda s: s.memory)
    print(f"memory of the longest life: {life[0] / MIB:.1f} MiB at first, {life[1] / MIB:.1f} at last")
    print(f"descriptors: {files[0]:g} at first, {files[1]:g} at last")
    size, number = thirds(samples, lambda s: s.size), thirds(samples, lambda s: s.files)
    print(
        f"disk: {size[0] / 1024:.0f} KiB in {number[0]:g} files at first, {size[1] / 1024:.0f} KiB in {number[1]:g}"
    )
    print(f"outside the run: {max(s.outside for s in samples)} entries at most")
    for name in GROWING:
        number_of, bytes_of = used(soak.run.directory.path / name)
        print(f"{name}: {number_of} files, {bytes_of / 1024:.0f} KiB")


def grown(samples: Sequence[Sample]) -> list[str]:
    """What should have stayed as it was, and did not."""
    found = []
    first, last = thirds(samples, lambda s: s.memory)
    if last > first + MORE_MEMORY:
        found.append(f"memory: {first:.0f} bytes, then {last:.0f}")
    first, last = thirds(longest_life(samples), lambda s: s.memory)
    if last > first + MORE_MEMORY:
        found.append(f"memory of one supervisor: {first:.0f} bytes, then {last:.0f}")
    first, last = thirds(samples, lambda s: s.descriptors)
    if last > first + MORE_DESCRIPTORS:
        found.append(f"descriptors: {first:.0f}, then {last:.0f}")
    first, last = thirds(samples, lambda s: s.size)
    if last > max(first + MORE_SIZE, FULL):  # at first there may be no generation yet
        found.append(f"bytes in the run directory: {first:.0f}, then {last:.0f}")
    if (most := max(s.files for s in samples)) > MOST_FILES:
        found.append(f"{most} files in the run directory")
    if (most := max(s.outside for s in samples)) > MOST_OUTSIDE:
        found.append(f"{most} entries outside of it")
    return found


def grown_by_design(soak: Soak, steps: int) -> list[str]:
    """What grows, and grew faster than it may: so many files, and so many bytes."""
    attempts, starts = len(soak.run.attempts()), soak.starts
    trained = steps + attempts * 2 * SCALE.every  # steps that were lost are there as well
    may = {
        "logs": (attempts, attempts * LOG),
        "metrics": (attempts, (trained + attempts) * LINE),
        "journal": (starts, (attempts + starts) * JOURNAL + trained // SCALE.every * SAVE),
    }
    found = []
    for name, (files, size) in may.items():
        number, taken = used(soak.run.directory.path / name)
        if number > files or taken > size:
            found.append(f"{name}: {number} files for {files}, {taken} bytes for {size}")
    return found
