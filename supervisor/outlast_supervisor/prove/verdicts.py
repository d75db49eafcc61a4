"""The verdicts of a proof: for each flow and part, for each control, and for the whole. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlast_jobs.contract import Answer

from .divergence import Divergence, first_divergence, training_differs
from .model import RNG
from .tracks import Record, Track

EXACT, WITHIN, DIVERGED, IDLE = "exact", "within tolerance", "diverged", "never drawn from"
DETECTED, NOT_NEEDED, NOT_NOTICED = "detected", "not needed", "not noticed"
FAILED, UNDECIDED = "failed", "undecided"

FlowWord = Literal["exact", "within tolerance", "diverged", "failed", "undecided"]
ControlWord = Literal["detected", "not needed", "not noticed", "undecided"]

_GENERATORS = ("numpy.Generator", "numpy.RandomState", "random.Random", "torch.Generator")


@dataclass(frozen=True, slots=True)
class Row:
    """One part, or one series of numbers, of a flow."""

    name: str
    verdict: str
    largest: float | None = 0.0  # None where the difference is no number
    note: str = ""


@dataclass(frozen=True, slots=True)
class FlowVerdict:
    """What a flow came to."""

    flow: str
    verdict: FlowWord
    restored: str = ""
    steps: int = 0  # compared
    rows: tuple[Row, ...] = ()
    first: Divergence | None = None
    cause: str = ""
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        return self.verdict in (EXACT, WITHIN)


@dataclass(frozen=True, slots=True)
class ControlVerdict:
    """What leaving a part out came to."""

    part: str
    verdict: ControlWord
    why: str
    first: Divergence | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Whole:
    """What the proof came to, with its reason."""

    answer: Answer
    word: str
    reason: str

    def joined(self, protocol: Mapping[str, Any]) -> Whole:
        """Together with the job's own protocol: the worse of the two."""
        answer, text = Answer(protocol["exit_code"]), protocol["text"]
        if answer == Answer.HELD or self.answer == Answer.DID_NOT_HOLD:
            return Whole(self.answer, self.word, f"{self.reason}; its own protocol: {text}")
        word = "did not hold" if answer == Answer.DID_NOT_HOLD else "undecided"
        return Whole(answer, word, f"its own protocol: {text}")


def rows_of(
    expected: Track,
    got: Track,
    idle: frozenset[str],
    differences: Mapping[str, Mapping[str, Any]] | None,
    tolerance: float,
) -> tuple[Row, ...]:
    """Series over all steps, then every part at the last. ``differences`` are the amounts, where measured."""
    steps = [step for step in expected.steps if step in got.steps]
    rows = [*_series(expected, got, steps, tolerance)]
    last = max(steps, default=0)
    old, new = expected.record(last), got.record(last)
    for name, digest in (old.get("parts") or {}).items():
        rows.append(_part(name, digest == (new.get("parts") or {}).get(name), differences, tolerance))
    for name in old.get("places") or {}:
        if name in idle:
            rows.append(Row(RNG + name, IDLE))
            continue
        same = all(_place(expected, step, name) == _place(got, step, name) for step in steps)
        rows.append(Row(RNG + name, EXACT if same else DIVERGED, 0.0 if same else None))
    for name, digest in (old.get("strays") or {}).items():
        same = digest == (new.get("strays") or {}).get(name)
        rows.append(Row(name, EXACT if same else DIVERGED, 0.0 if same else None, "never registered"))
    return tuple(rows)


def flow_word(rows: Sequence[Row], first: Divergence | None) -> FlowWord:
    """The worst of the rows; a divergence that healed until the last step is one all the same."""
    found = {row.verdict for row in rows}
    if DIVERGED in found or first is not None:
        return "diverged"
    return "within tolerance" if WITHIN in found else "exact"


def not_needed(part: str, expected: Track, cut: int, idle: frozenset[str]) -> ControlVerdict | None:
    """The verdict on a generator that nobody draws from after the cut: it needs no run."""
    if _stream(part) in idle or _undrawn(part, expected, cut):
        return ControlVerdict(part, "not needed", "this job never draws from it after the cut")
    return None


def control_verdict(
    part: str, expected: Track, got: Track, saved: Record, idle: frozenset[str]
) -> ControlVerdict:
    """Whether leaving a part out was noticed, and if not, whether it could be."""
    found = first_divergence(expected, got, saved=saved, idle=idle)
    if found is None:
        if _as_fresh(part, saved, got):
            return ControlVerdict(part, "not needed", "at the cut it is as a fresh start makes it")
        return ControlVerdict(part, "not noticed", "nothing that is compared differs without it")
    trained = training_differs(expected, got, idle)
    effect = (
        "the training goes on the same" if trained is None else f"the training differs from step {trained}"
    )
    return ControlVerdict(part, "detected", f"{found}; {effect}", found)


def whole(
    flows: Sequence[FlowVerdict],
    controls: Sequence[ControlVerdict],
    *,
    undecided: str,
    partial: bool,
) -> Whole:
    """The answer: what failed first, then what could not be decided, then what proves nothing."""
    bad = [flow for flow in flows if flow.verdict in (DIVERGED, FAILED)]
    if bad:
        what = (
            f"{len(bad)} of {len(flows)} flows {'is' if len(bad) == 1 else 'are'} not the uninterrupted run"
        )
        return Whole(Answer.DID_NOT_HOLD, "did not hold", f"{what}: {bad[0].flow}: {bad[0].cause}")
    missed = [control.part for control in controls if control.verdict == NOT_NOTICED]
    if missed:
        reason = f"leaving out {', '.join(missed)} was not noticed, so that the comparison is blind there"
        return Whole(Answer.DID_NOT_HOLD, "did not hold", reason)
    open_ones = [f.flow for f in flows if f.verdict == UNDECIDED]
    open_ones += [f"without {c.part}" for c in controls if c.verdict == UNDECIDED]
    if undecided or open_ones:
        reason = undecided or f"could not be carried out: {', '.join(open_ones)}"
        return Whole(Answer.UNDECIDED, "undecided", reason)
    detected = sum(control.verdict == DETECTED for control in controls)
    if controls and not detected and not partial:
        reason = "no part of this job's state can be told from that of a fresh start"
        return Whole(Answer.UNDECIDED, "proves nothing", reason)
    if not flows and not controls:
        return Whole(Answer.UNDECIDED, "proves nothing", "nothing was compared")
    exact = all(flow.verdict == EXACT for flow in flows)
    how = "every difference is 0" if exact else "every difference is within the tolerance"
    noticed = f"{detected} of {len(controls)} left-out parts detected" if controls else "no control was run"
    idle = sum(control.verdict == NOT_NEEDED for control in controls)
    noticed += f", {idle} not needed" if idle else ""
    return Whole(Answer.HELD, "held", f"{how}; {noticed}")


def _series(expected: Track, got: Track, steps: Sequence[int], tolerance: float) -> Iterator[Row]:
    for name, read in (("learning rates", _rates), ("losses", _loss), ("sample ids", _ids)):
        pairs = [(read(expected, step), read(got, step)) for step in steps]
        pairs = [(old, new) for old, new in pairs if old is not None and new is not None]
        if not pairs:
            continue
        if all(repr(old) == repr(new) for old, new in pairs):
            yield Row(name, EXACT)
            continue
        amounts = [Divergence(0, False, "loss", "", old, new).amount for old, new in pairs]
        known = [amount for amount in amounts if amount is not None]
        largest = max(known) if len(known) == len(pairs) and all(map(math.isfinite, known)) else None
        within = name != "sample ids" and largest is not None and tolerance > 0 and largest <= tolerance
        yield Row(name, WITHIN if within else DIVERGED, None if name == "sample ids" else largest)


def _part(
    name: str, same: bool, differences: Mapping[str, Mapping[str, Any]] | None, tolerance: float
) -> Row:
    if same:
        return Row(name, EXACT)
    measured = (differences or {}).get(name)
    largest = measured.get("largest") if measured else None
    within = isinstance(largest, float) and tolerance > 0 and largest <= tolerance
    where = str(measured.get("where") or "") if measured else ""
    return Row(name, WITHIN if within else DIVERGED, largest, f"at {where}" if where else "")


def _stream(part: str) -> str:
    """The random stream that a part's name means, or empty."""
    return part.removeprefix(RNG) if part.startswith(RNG) else ""


def _undrawn(part: str, expected: Track, cut: int) -> bool:
    """Whether a registered generator stays where it is from the cut on."""
    records = [expected.record(step) for step in expected.steps if step >= cut]
    if not records or records[0].get("kinds", {}).get(part) not in _GENERATORS:
        return False
    return len({record.get("parts", {}).get(part) for record in records}) == 1


def _as_fresh(part: str, saved: Record, got: Track) -> bool:
    """Whether what was left out began just as it had been saved."""
    start, stream = got.record(got.restored_step), _stream(part)
    key, name = ("places", stream) if stream else ("parts", part)
    before, after = saved.get(key, {}).get(name), start.get(key, {}).get(name)
    return before is not None and before == after


def _place(track: Track, step: int, name: str) -> Any:
    return track.record(step).get("places", {}).get(name)


def _rates(track: Track, step: int) -> Any:
    return track.steps[step].get("proof", {}).get("rates") or track.steps[step].get("lr")


def _loss(track: Track, step: int) -> Any:
    return track.steps[step].get("loss")


def _ids(track: Track, step: int) -> Any:
    found = track.steps[step].get("ids")
    return found if found is not None else track.steps[step].get("proof", {}).get("batch")
