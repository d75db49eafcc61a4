"""Which generations stay and which go: a plan with a reason for each, from facts; nothing is deleted here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from outlast_jobs.generation import GenerationName


class KeepPolicy(Protocol):
    """The ``keep`` section of a job file."""

    @property
    def last(self) -> int: ...
    @property
    def every_steps(self) -> int | None: ...
    @property
    def max_bytes(self) -> int | None: ...


class Gen(Struct, frozen=True):
    """What retention must know of a generation of the run's own."""

    name: GenerationName
    verified: bool  # every byte of it was read and matched
    healthy: bool
    bytes: int


class Reasoned(NamedTuple):
    """One line of a plan."""

    name: str
    reason: str


class Plan(Struct, frozen=True):
    """What is to stay and what is to go, newest first, each with its reason."""

    keep: tuple[Reasoned, ...]
    drop: tuple[Reasoned, ...]
    refused: str | None = None  # why nothing is dropped although the policy might ask for it


def plan(
    generations: Sequence[Gen],
    policy: KeepPolicy,
    pinned: Collection[str],
    resumed_from: str | None,
    complete_view: bool,
) -> Plan:
    """Apply ``policy`` to the run's generations. Run it only after a new generation was verified.

    Whatever the policy says, these stay: the newest verified, the newest healthy, the pinned, the one resumed
    from, and those newer than the newest verified. ``complete_view`` False says that some could not be seen.
    """
    if policy.last < 1:
        raise ValueError(f"keep.last is {policy.last}, but at least 1 must stay to resume from")
    if policy.every_steps is not None and policy.every_steps < 1:
        raise ValueError(f"keep.every_steps is {policy.every_steps}, but must be at least 1")
    newest_first = sorted(generations, key=lambda gen: gen.name, reverse=True)
    verified = [gen for gen in newest_first if gen.verified]
    refused = _refusal(newest_first, verified, complete_view)
    if refused is not None:
        return Plan(tuple(Reasoned(str(gen.name), refused) for gen in newest_first), (), refused)
    must = _must_stay(newest_first, verified, pinned, resumed_from)
    wanted = _wanted(newest_first, verified, policy)
    kept = [gen for gen in newest_first if gen.name in must or gen.name in wanted]
    too_much = _over_budget(kept, must, policy.max_bytes)
    keep: list[Reasoned] = []
    drop: list[Reasoned] = []
    for gen in newest_first:
        if gen.name in must:
            keep.append(Reasoned(str(gen.name), must[gen.name]))
        elif gen.name in too_much:
            drop.append(Reasoned(str(gen.name), too_much[gen.name]))
        elif gen.name in wanted:
            keep.append(Reasoned(str(gen.name), wanted[gen.name]))
        else:
            drop.append(Reasoned(str(gen.name), _why_not_wanted(gen, policy)))
    return Plan(tuple(keep), tuple(drop))


def _refusal(newest_first: Sequence[Gen], verified: Sequence[Gen], complete_view: bool) -> str | None:
    if not complete_view:
        return "not all generations could be seen, so nothing is dropped"
    if newest_first and not verified:
        return "no generation is verified, so nothing is dropped"
    return None


def _must_stay(
    newest_first: Sequence[Gen], verified: Sequence[Gen], pinned: Collection[str], resumed_from: str | None
) -> dict[GenerationName, str]:
    reasons: dict[GenerationName, list[str]] = {}
    healthy = next((good.name for good in verified if good.healthy), None)
    for gen in newest_first:
        why = reasons.setdefault(gen.name, [])
        if verified and gen.name > verified[0].name:
            why.append("newer than the newest verified")
        if verified and gen.name == verified[0].name:
            why.append("newest verified")
        if gen.name == healthy:
            why.append("newest healthy")
        if str(gen.name) in pinned:
            why.append("pinned")
        if str(gen.name) == resumed_from:
            why.append("resumed from")
    return {name: ", ".join(why) for name, why in reasons.items() if why}


def _wanted(
    newest_first: Sequence[Gen], verified: Sequence[Gen], policy: KeepPolicy
) -> dict[GenerationName, str]:
    wanted = {gen.name: f"one of the last {policy.last}" for gen in verified[: policy.last]}
    if policy.every_steps is not None:
        for multiple, gen in _first_at_or_past(verified, policy.every_steps).items():
            wanted.setdefault(gen.name, f"first at or past step {multiple}")
    # Not verified takes no slot. It stays while too few good ones are newer: it may yet be needed.
    oldest_held = None if len(verified) < policy.last else verified[policy.last - 1].name
    for gen in newest_first:
        if not gen.verified and (oldest_held is None or gen.name > oldest_held):
            wanted[gen.name] = f"not verified, and fewer than {policy.last} verified ones are newer"
    return wanted


def _first_at_or_past(verified: Sequence[Gen], every: int) -> dict[int, Gen]:
    # A cadence in seconds seldom hits a multiple, so the first one past it stands for it.
    first: dict[int, Gen] = {}
    for gen in verified:  # newest first, so of equal steps the newest attempt's is met first and stays
        multiple = gen.name.step // every * every
        if multiple and (multiple not in first or gen.name.step < first[multiple].name.step):
            first[multiple] = gen
    return first


def _over_budget(
    kept: Sequence[Gen], must: Collection[GenerationName], max_bytes: int | None
) -> dict[GenerationName, str]:
    """What goes for ``max_bytes``: first what isn't verified, then the oldest, until the rest fits."""
    if max_bytes is None:
        return {}
    total = sum(gen.bytes for gen in kept)
    going: dict[GenerationName, str] = {}
    for gen in sorted(kept, key=lambda gen: (gen.verified, gen.name)):
        if total <= max_bytes:
            break
        if gen.name not in must and gen.bytes:
            going[gen.name] = f"over max_bytes: {total} bytes are kept, {max_bytes} are allowed"
            total -= gen.bytes
    return going


def _why_not_wanted(gen: Gen, policy: KeepPolicy) -> str:
    if not gen.verified:
        return f"never verified, and {policy.last} verified ones are newer"
    periodic = (
        "" if policy.every_steps is None else f" nor the first past a multiple of {policy.every_steps} steps"
    )
    return f"not one of the last {policy.last}{periodic}"
