"""The first thing in which two tracks differ, causes before their effects: a pure comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outlast_jobs.metrics import distance, shown

from .tracks import Line, Record, Track

Thing = Literal[
    "part",
    "rng",
    "unregistered",
    "ids",
    "batch",
    "updates",
    "lr",
    "loss",
    "gradient",
    "parameter",
    "counters",
    "step",
]

WORDS: Mapping[Thing, str] = {
    "part": "the state of",
    "rng": "the random stream",
    "unregistered": "what was never registered:",
    "ids": "the sample ids",
    "batch": "the content of the batch",
    "updates": "the number of updates",
    "lr": "the learning rate",
    "loss": "the loss",
    "gradient": "the gradient of",
    "parameter": "the parameter",
    "counters": "epoch and batch",
    "step": "the step itself",
}


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two tracks part: the step, the first thing that differs in it, and the other things."""

    step: int
    at_restore: bool  # the state was wrong before that step was trained
    thing: Thing
    name: str
    old: Any
    new: Any
    also: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return f"{WORDS[self.thing]} {self.name}".rstrip()

    @property
    def amount(self) -> float | None:
        """By how much, for numbers and lists of numbers."""
        return distance(self.old, self.new)

    def __str__(self) -> str:
        if self.at_restore:
            when = f"right after the restore of step {self.step}" if self.step else "before the first step"
        else:
            when = f"step {self.step}"
        if self.thing in ("ids", "updates", "lr", "loss", "counters"):
            by = f", by {self.amount!r}" if self.amount is not None and self.thing in ("lr", "loss") else ""
            verb = "are" if self.thing in ("ids", "counters") else "is"
            return (
                f"{when}: {self.what} {verb} {shown(_alone(self.new))} and not {shown(_alone(self.old))}{by}"
            )
        return f"{when}: {self.what} differs"


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that differs, before it is known which comes first."""

    thing: Thing
    name: str
    old: Any
    new: Any


def first_divergence(
    expected: Track,
    got: Track,
    *,
    saved: Record | None = None,
    idle: frozenset[str],
    tolerance: float = 0.0,
    upto: int | None = None,
) -> Divergence | None:
    """Hold a track against the undisturbed one, from where it begins.

    ``saved`` is the record of the boundary that was restored, from the run that was cut there; the streams in
    ``idle`` are compared with that alone, since nothing sets them and nothing draws from them.
    """
    begin = got.restored_step
    if saved and got.start and (found := list(_at_restore(saved, got.record(begin)))):
        return _made(begin, found, at_restore=True)
    last = expected.last if upto is None else upto
    for step in range(begin + 1, last + 1):
        if step not in expected.steps:
            continue
        if step not in got.steps:
            return Divergence(step, False, "step", "", "trained", "missing")
        known = frozenset(got.record(begin).get("strays", {}))
        found = list(_in_step(expected.steps[step], got.steps[step], idle, tolerance, known))
        if found:
            return _made(step, found, at_restore=False)
    return None


def training_differs(expected: Track, got: Track, idle: frozenset[str]) -> int | None:
    """The first step whose inputs, loss or parameters differ; other state may have differed before."""
    for step, old in expected.steps.items():
        if step <= got.restored_step:
            continue
        new = got.steps.get(step)
        if new is None:
            return step
        for found in _in_step(old, new, idle, 0.0, frozenset()):
            if found.thing not in ("part", "counters", "unregistered"):
                return step
    return None


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _made(step: int, found: list[Found], *, at_restore: bool) -> Divergence:
    first, *rest = found
    named: dict[str, list[str]] = {}
    for item in rest:
        named.setdefault(WORDS[item.thing], []).append(item.name)
    also = tuple(
        f"{words} {names[0]}".rstrip() + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for words, names in named.items()
    )
    return Divergence(step, at_restore, first.thing, first.name, first.old, first.new, also)


def _at_restore(saved: Record, start: Record) -> Iterator[Found]:
    """What a training found otherwise than it was saved. The data show themselves in the first batch."""
    yield from _value("lr", saved.get("lr"), start.get("lr"))
    yield from _differing("part", saved, start, "parts", without="data")
    yield from _differing("rng", saved, start, "places")
    yield from _differing("unregistered", saved, start, "strays")


def _in_step(
    old: Line, new: Line, idle: frozenset[str], tolerance: float, known: frozenset[str]
) -> Iterator[Found]:
    """What differs in one step, in the order in which things happen in it."""
    before, after = old.get("proof", {}), new.get("proof", {})
    exact = tolerance == 0.0
    yield from _value("ids", old.get("ids"), new.get("ids"))
    yield from _value("batch", before.get("batch"), after.get("batch"))
    yield from (f for f in _differing("rng", before, after, "places") if f.name not in idle)
    yield from _value("updates", before.get("updates"), after.get("updates"))  # or rates of none would differ
    yield from _number("lr", before.get("rates"), after.get("rates"), tolerance)
    # What was there and right when this attempt began has not caused this; what came later may have.
    strays = list(_differing("unregistered", before, after, "strays")) if exact else []
    yield from (f for f in strays if f.name not in known)
    yield from _number("loss", old.get("loss"), new.get("loss"), tolerance)
    if exact:
        yield from _differing("gradient", before, after, "gradients")
        yield from _differing("parameter", before, after, "tensors")
        if not any(True for _ in _differing("parameter", before, after, "tensors")):
            yield from _differing("part", before, after, "parts", without="data")
        yield from (f for f in strays if f.name in known)
        yield from _differing("part", before, after, "parts", only="data")
    yield from _number("lr", old.get("lr"), new.get("lr"), tolerance, "for the next step")
    counters = ([line.get("epoch"), line.get("batch")] for line in (old, new))
    yield from _value("counters", *counters)


def _differing(
    thing: Thing, old: Record, new: Record, key: str, *, without: str = "", only: str = ""
) -> Iterator[Found]:
    before, after = old.get(key) or {}, new.get(key) or {}
    for name in before:
        wanted = name != without and (not only or name == only)
        if wanted and name in after and before[name] != after[name]:
            yield Found(thing, name, before[name], after[name])


def _value(thing: Thing, old: Any, new: Any) -> Iterator[Found]:
    if old is not None and new is not None and old != new:
        yield Found(thing, "", old, new)


def _number(thing: Thing, old: Any, new: Any, tolerance: float, name: str = "") -> Iterator[Found]:
    if old is None or new is None or repr(old) == repr(new):
        return
    found = Found(thing, name, old, new)
    amount = distance(old, new)
    if amount is None or not amount <= tolerance or tolerance == 0.0:
        yield found
