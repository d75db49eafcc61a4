"""Reading metrics: the run's history with each step once, and what a replay of lost steps came to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from outlast_jobs import durable
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName
from outlast_jobs.rundir import RunDirectory

Line = dict[str, Any]
"""One step: "step", "loss", and whatever else the attempt wrote."""

_LINE_LIMIT = 1024 * 1024
_NAME = re.compile(r"attempt-(\d+)\.jsonl")
_NOT_FINITE = frozenset(["nan", "inf", "-inf"])


class Header(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.METRICS):
    """An attempt's first line: from which step on its lines count, and of which generation."""

    attempt: int
    restored_step: int
    restored: str | None = None


class Metrics(Struct, frozen=True):
    """One attempt's file; the header is None where it was torn."""

    header: Header | None
    lines: tuple[Line, ...]


class Difference(Struct, frozen=True):
    """The first step that came out differently, and the stream in it that is nearest to the cause."""

    step: int
    stream: str
    old: Any
    new: Any
    also: tuple[str, ...] = ()  # the other streams that differ at this step

    @property
    def amount(self) -> float | None:
        """By how much, for numbers and lists of numbers."""
        return distance(self.old, self.new)

    def __str__(self) -> str:
        by = f" (by {self.amount!r})" if self.amount is not None else ""
        also = f"; also {', '.join(self.also)}" if self.also else ""
        return f"step {self.step}: {self.stream} is {shown(self.new)}, was {shown(self.old)}{by}{also}"


class Audit(Struct, frozen=True):
    """What the comparison of replayed steps with the lost ones found."""

    compared: int
    total: int
    first: Difference | None

    @property
    def equal(self) -> bool:
        """Whether nothing differed, of what was compared."""
        return self.first is None

    @property
    def text(self) -> str:
        counted = f"{self.compared} of {self.total} replayed steps compared"
        if self.first is not None:
            return f"{counted}, first difference at {self.first}"
        return f"{counted}, all equal" if self.compared else counted


def loss_of(line: Mapping[str, Any]) -> float | None:
    """The loss that a line records, NaN and infinities included; None where it has none."""
    return _number(line.get("loss"))


def read_metrics(path: Path) -> Metrics:
    """One attempt's lines, each step once. Blank, torn and damaged lines are left out."""
    return Metrics(read_header(path), tuple(steps(path)))


def read_header(path: Path) -> Header | None:
    """The first line alone; None where there is no such file, or the line is torn."""
    for first in _raw(path):
        try:
            return msgspec.json.decode(first, type=Header)
        except (ValueError, RecursionError):
            return None
    return None


def history(run: RunDirectory) -> Iterator[Line]:
    """Each step once, in order, from the attempt whose state went on, with the attempt's number in "attempt".

    Goes back from the newest attempt that trained: its own lines, then up to the step that it restored those
    of the attempt which had sealed that generation, and so on to a fresh start.
    """
    for attempt, last in lineage(run):
        for line in steps(run.attempt_metrics(attempt)):
            if last is not None and line["step"] > last:
                break
            yield {**line, "attempt": attempt}


def replayed(run: RunDirectory, attempt: int) -> dict[int, Line]:
    """What earlier attempts recorded of the steps that this one has to repeat: past the step it restored."""
    header = read_header(run.attempt_metrics(attempt))
    earlier: dict[int, Line] = {}
    if header is None:
        return earlier
    for number in attempts(run):
        if number < attempt:
            for line in steps(run.attempt_metrics(number)):
                if line["step"] > header.restored_step:
                    earlier[line["step"]] = line
    return earlier


def compare_replay(older: Iterable[Line], newer: Iterable[Line]) -> Audit:
    """Hold the steps that were trained again against what the lost attempt recorded of them.

    Losses, rates, sample ids and RNG digests are compared to the last bit, where both attempts have them.
    """
    before = {line["step"]: line for line in older}
    after = {line["step"]: line for line in newer}
    begin = min(after, default=0)
    compared = 0
    for step in sorted(before.keys() & after.keys()):
        old, new = _streams(before[step]), _streams(after[step])
        shared = [stream for stream in old if stream in new and type(old[stream]) is type(new[stream])]
        compared += bool(shared)
        differing = [stream for stream in shared if repr(old[stream]) != repr(new[stream])]
        if differing:
            first, *also = differing
            difference = Difference(step, first, old[first], new[first], tuple(also))
            return Audit(compared, sum(s >= begin for s in before), difference)
    return Audit(compared, sum(s >= begin for s in before), None)


def attempts(run: RunDirectory) -> list[int]:
    """Numbers of the attempts that have a metrics file, in order."""
    try:
        names = os.listdir(run.metrics)
    except FileNotFoundError:
        return []
    found = ((m, int(m[1])) for m in map(_NAME.fullmatch, names) if m)
    return sorted(number for m, number in found if run.attempt_metrics(number).name == m[0])


def lineage(run: RunDirectory) -> list[tuple[int, int | None]]:
    """The attempts whose state went on, in order, each with the last step that counts of it (None: all)."""
    chain: list[tuple[int, int | None]] = []
    bound: int | None = None
    parent: int | None = None  # the attempt that must come next, where a header names it
    for number in reversed(attempts(run)):
        path = run.attempt_metrics(number)
        if parent is not None and number > parent:
            continue
        first = next(steps(path), None)
        header = read_header(path)
        if number != parent and (first is None or (bound is not None and first["step"] > bound)):
            continue
        if first is not None:
            chain.append((number, bound))
        if header is not None and header.restored is None and header.restored_step == 0:
            break
        bound, parent = _before(header, first, bound)
    return chain[::-1]


def _before(header: Header | None, first: Line | None, bound: int | None) -> tuple[int | None, int | None]:
    """The last step that an attempt did not train itself, and whose it was, as far as that can be known."""
    if header is None:
        return (first["step"] - 1 if first else bound), None
    name = GenerationName.parse(header.restored) if header.restored else None
    # A generation of another run (start_from) has a number of that run; one not below ours shows it.
    parent = name.attempt if name is not None and name.attempt < header.attempt else None
    return header.restored_step, parent


def steps(path: Path) -> Iterator[Line]:
    """One attempt's lines as they are read, each step once. Blank, torn and damaged lines are left out."""
    last = 0
    for raw in _raw(path):
        try:
            line = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict) or "schema" in line:
            continue
        step = line.get("step")
        if type(step) is int and last < step < 2**63:
            last = step
            yield line


def _raw(path: Path) -> Iterator[bytes]:
    """Whole lines. A last line without its end is being written, or was torn."""
    try:
        with os.fdopen(durable.open_regular(path), "rb") as file:
            yield from _whole_lines(file)
    except (FileNotFoundError, IntegrityError):
        return


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(_LINE_LIMIT):
        if line.endswith(b"\n"):
            if line.strip(b" \t\r\n\0"):
                yield line
            continue
        while (rest := file.readline(_LINE_LIMIT)) and not rest.endswith(b"\n"):
            durable.skip_hole(file)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if value in _NOT_FINITE else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def distance(old: Any, new: Any) -> float | None:
    """The largest difference of two numbers, or of two lists of as many; None for anything else."""
    before, after = _numbers(old), _numbers(new)
    if before is None or after is None or len(before) != len(after):
        return None
    return max((abs(b - a) for a, b in zip(before, after, strict=True)), default=None)


def _numbers(value: Any) -> list[float] | None:
    found = [_number(item) for item in (value if isinstance(value, list) else [value])]
    numbers = [number for number in found if number is not None]
    return numbers if len(numbers) == len(found) else None


def _streams(line: Line) -> dict[str, Any]:
    """What is compared, causes first: the samples drawn, the random streams, the rates, then the loss."""
    streams: dict[str, Any] = {"ids": line.get("ids")}
    rng = line.get("rng")
    if isinstance(rng, dict):
        streams |= {f"rng/{name}": rng[name] for name in sorted(rng)}
    streams |= {"lr": line.get("lr"), "loss": loss_of(line)}
    return {name: value for name, value in streams.items() if value is not None}


def shown(value: Any) -> str:
    """A value for people, cut where it is long."""
    text = repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
