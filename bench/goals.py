"""What was found beside what it is held against: a line for people, and a record for whoever collects them.

A record is a line of JSON, appended to the file that ``OUTLAST_BENCH_GOALS`` names; without it there is none.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

RECORDS = "OUTLAST_BENCH_GOALS"


@dataclass(frozen=True)
class Goal:
    """One figure and its bound. ``verdict`` is met, NOT MET and what that may hang on, or why nothing was found."""

    what: str
    found: str
    beside: str
    """What it is held against: a limit of the machine, or the best peer."""
    ratio: str
    bound: str
    verdict: str


@dataclass(frozen=True)
class Least:
    """What no way can do without, measured in the same run: the machine's share of a goal that is not met."""

    figure: float
    what: str


def ratio(
    what: str,
    ours: float,
    other: float,
    of: str,
    *,
    unit: str,
    at_most: float = 0,
    at_least: float = 0,
    least: Least | None = None,
) -> None:
    """Hold a figure against another one of the same run. Where ``least`` is beyond the bound too, that is said."""
    if other <= 0:  # a difference of times can be, where there is next to none
        missing(what, f"{of} is within the noise, {_shown(other, unit)}")
        return
    found = ours / other
    met = found >= at_least if at_least else found <= at_most
    bound = f"at least {at_least:g}" if at_least else f"at most {at_most:g}"
    verdict = _verdict(met)
    if not met and least is not None and least.figure / other > at_most:
        verdict += f"; {least.what} alone: {least.figure / other:.2f}"
    tell(Goal(what, _shown(ours, unit), f"{of}, {_shown(other, unit)}", f"{found:.2f}", bound, verdict))


def value(what: str, ours: float, unit: str, *, at_most: float) -> None:
    """Hold a figure against a bound that is no other figure."""
    tell(Goal(what, _shown(ours, unit), "", "", f"at most {at_most:g} {unit}", _verdict(ours <= at_most)))


def missing(what: str, why: str) -> None:
    """There is no figure."""
    tell(Goal(what, "", "", "", "", f"not measured: {why}"))


def tell(goal: Goal) -> None:
    """Print it, and record it where that is asked for."""
    beside = f"{goal.ratio:>6} of {goal.beside}" if goal.beside else ""
    bound = f"{goal.bound}: " if goal.bound else ""
    print(f"  {goal.what:<46}{goal.found:>10}{beside:<50}{bound}{goal.verdict}", flush=True)
    if path := os.environ.get(RECORDS):
        with Path(path).open("a") as file:
            file.write(json.dumps(asdict(goal)) + "\n")


def read(path: Path) -> list[Goal]:
    """What was recorded there."""
    if not path.exists():
        return []
    return [Goal(**json.loads(line)) for line in path.read_text().splitlines()]


def _verdict(met: bool) -> str:
    return "met" if met else "NOT MET"


def _shown(figure: float, unit: str) -> str:
    digits = 2 if abs(figure) < 10 else 1 if abs(figure) < 100 else 0
    return f"{figure:.{digits}f} {unit}".rstrip()
