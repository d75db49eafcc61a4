"""What follows an attempt's end: what is counted, and whether and how to start again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from outlast_jobs.contract import Phase
from outlast_jobs.ending import SIGNALLED, Ending, Kind, Outcome, Policy, classify
from outlast_jobs.failure import Failure, Signature, signature_from_log

__all__ = [
    "Action",
    "Again",
    "Counters",
    "Done",
    "Ending",
    "Failure",
    "GiveUp",
    "HoldSick",
    "Kind",
    "Outcome",
    "Policy",
    "Signature",
    "Unusable",
    "classify",
    "decide",
    "signature_from_log",
]


class Counters(Struct, frozen=True):
    """What is remembered from attempt to attempt: the four counts, and what the next decision needs."""

    preempted: int = 0
    crashed_progress: int = 0
    crashed: int = 0
    hung: int = 0
    without_progress: int = 0  # failures in a row since the last progress
    waited: float = 0.0  # seconds of backoff since the last progress
    last: Signature | None = None  # of the last failure that had one
    last_trained: int = 0  # steps that had gone well before it; 0 also where it may have come from outside
    stepped_back: Signature | None = None  # the restore failure for which an older generation is being tried
    sick_steps: tuple[int, ...] = ()  # steps at which the run has diverged
    tight: bool = False  # the next attempt is to take no memory for copies of its state

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the journal."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("last", "stepped_back"):
            found: Signature | None = plain[name]
            plain[name] = found and {"exception": found.exception, "where": found.where, "step": found.step}
        plain["sick_steps"] = list(self.sick_steps)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Counters:
        """From the journal; unknown names are passed over and missing ones are zero: versions can mix."""
        known: dict[str, Any] = {name: data[name] for name in cls.__struct_fields__ if name in data}
        for name in ("last", "stepped_back"):
            if isinstance(found := known.get(name), Mapping):
                step = found.get("step")
                known[name] = Signature(str(found.get("exception")), str(found.get("where", "")), step)
        known["sick_steps"] = tuple(known.get("sick_steps", ()))
        return cls(**known)


class Again(Struct, frozen=True):
    """Start again after a delay, from the newest usable generation, an older one, or the newest healthy."""

    delay: float
    resume: Literal["newest", "older", "healthy"]
    reason: str


class GiveUp(Struct, frozen=True):
    """Hold the run: starting it again would not help."""

    reason: str


class HoldSick(Struct, frozen=True):
    """Hold the run as sick: it diverges at the same step each time."""

    reason: str


class Unusable(Struct, frozen=True):
    """Stop for an integrity reason that a person has to look at."""

    reason: str


class Done(Struct, frozen=True):
    """The run is complete."""

    reason: str


Action = Again | GiveUp | HoldSick | Unusable | Done


def decide(counters: Counters, outcome: Outcome, policy: Policy, rng: float) -> tuple[Counters, Action]:
    """The counters after this outcome, and what to do. `rng` in [0, 1) spreads the delays of many runs."""
    counters = replace(counters, tight=_tight(counters, outcome, policy))
    match outcome.kind:
        case Kind.DONE:
            return counters, Done(outcome.reason)
        case Kind.REFUSED:
            return counters, Unusable(outcome.reason)
        case Kind.BAD_GENERATION:
            return counters, Again(0.0, "newest", f"the generation was set aside: {outcome.reason}")
        case Kind.SAVED:
            return _after_saved(counters, outcome, policy)
        case Kind.SICK:
            return _after_sick(counters, outcome, policy, rng)
        case Kind.HUNG | Kind.CRASHED | Kind.CRASHED_PROGRESS:
            return _after_crash(counters, outcome, policy, rng)


def _tight(c: Counters, outcome: Outcome, policy: Policy) -> bool:
    """Whether the attempt may have died of the memory that copies for its saves take; they can be done without."""
    e = outcome.ending
    if e.short or e.progress:
        return e.short
    # a signal of which nobody says why may be the kernel's as well, where it comes again
    unnamed = c.without_progress > 0 and (e.status or 0) > SIGNALLED and e.status not in policy.free_on
    return c.tight or (outcome.kind is Kind.CRASHED and unnamed)


_SICK_STEPS_KEPT = 64
"""More than the tries without progress that any job allows before it is given up."""


def _after_saved(counters: Counters, outcome: Outcome, policy: Policy) -> tuple[Counters, Action]:
    e = outcome.ending
    after = replace(counters, preempted=counters.preempted + 1)
    if e.progress:
        after = _progressed(after)
    # Something that ends the worker with TERM as soon as it starts, and tells us nothing, must not spin.
    unexplained = e.stopped_by is None and not e.notice and not e.progress
    return after, Again(policy.backoff[0] if unexplained else 0.0, "newest", outcome.reason)


def _after_sick(c: Counters, outcome: Outcome, policy: Policy, rng: float) -> tuple[Counters, Action]:
    step = outcome.ending.sick_step
    if step is None or step in c.sick_steps:
        return c, HoldSick(
            f"{outcome.reason}, again after a restart from the newest healthy generation; "
            "change the job or its code, or set sick: continue"
        )
    # Only a run that stayed well for longer than ever got on; the unhealthy generations it sealed are no progress.
    further = outcome.ending.progress and step > max(c.sick_steps, default=-1)
    outcome = replace(outcome, ending=replace(outcome.ending, attached=True, sealed=further))
    after = replace(c, sick_steps=(*c.sick_steps, step)[-_SICK_STEPS_KEPT:])
    return _counted(after, outcome, policy, rng, "healthy")


def _after_crash(c: Counters, outcome: Outcome, policy: Policy, rng: float) -> tuple[Counters, Action]:
    e = outcome.ending
    kind = outcome.kind.value
    after = replace(c, stepped_back=None)
    failure = e.failure
    if failure is not None:
        after = replace(after, last=failure.signature, last_trained=_evidence(e, failure))
    if outcome.kind is not Kind.HUNG and e.status in policy.free_on:
        after = replace(after, preempted=after.preempted + 1)
        after = _progressed(after) if e.progress else after
        return after, Again(_backoff(after, policy, rng), "newest", f"{outcome.reason}; free_on: not counted")
    after = replace(after, **{kind: getattr(after, kind) + 1})
    if outcome.kind is not Kind.HUNG and e.status in policy.never_on:
        return after, GiveUp(f"{outcome.reason}; never_on names exit {e.status}")
    if failure is None or outcome.kind is Kind.HUNG:
        return _counted(after, outcome, policy, rng, "newest")
    if _deterministic(c, e, failure):
        return after, GiveUp(f"deterministic: {failure.signature}, twice in a row; {_totals(after)}")
    if failure.phase != Phase.RESTORE:
        return _counted(after, outcome, policy, rng, "newest")
    if c.stepped_back is None:
        after = replace(after, stepped_back=failure.signature)
        return _counted(after, outcome, policy, rng, "older")
    if c.stepped_back.same_place(failure.signature) and not failure.passing:
        if not e.given:
            message = _first_line(failure.message)
            return after, GiveUp(
                f"{failure.signature}, twice before the first step{message}; {_counts(after)}"
            )
        return after, GiveUp(
            f"{failure.signature}, twice while restoring, the second time from an older generation if there is one"
            f"{_first_line(failure.message)}; go back to the code that saved them, or begin anew with --fresh; "
            f"{_counts(after)}"
        )
    return _counted(after, outcome, policy, rng, "newest")


def _first_line(message: str) -> str:
    return "".join(f": {line}" for line in message.splitlines()[:1])


def _evidence(e: Ending, failure: Failure) -> int:
    """Steps that went well before the failure; none where it may have come from outside the program."""
    outside = failure.passing or failure.step is None or e.signal is not None or e.oom_kills > 0
    return 0 if outside else e.trained


def _deterministic(c: Counters, e: Ending, failure: Failure) -> bool:
    """The same failure at the same step, each time after at least one step that went well."""
    return c.last == failure.signature and min(c.last_trained, _evidence(e, failure)) >= 1


def _progressed(counters: Counters) -> Counters:
    return replace(counters, without_progress=0, waited=0.0)


def _counted(
    c: Counters,
    outcome: Outcome,
    policy: Policy,
    rng: float,
    resume: Literal["newest", "older", "healthy"],
) -> tuple[Counters, Action]:
    """One more failure: reset by progress, else one of the tries that are allowed."""
    c = _progressed(c) if outcome.ending.progress else replace(c, without_progress=c.without_progress + 1)
    # Without any backoff nothing is ever waited for, and the number of tries alone has to end the loop.
    waited_enough = c.waited >= policy.waiting or policy.backoff[1] <= 0
    if c.without_progress >= policy.without_progress and waited_enough:
        return c, GiveUp(f"{_named(c, outcome)}; {_counts(c)}")
    delay = _backoff(c, policy, rng)
    return replace(c, waited=c.waited + delay), Again(
        delay, resume, f"{outcome.reason}; start again in {delay:.1f} s"
    )


def _named(c: Counters, outcome: Outcome) -> str:
    """The reason, with the signature where it does not say it itself."""
    if c.last is None or str(c.last) in outcome.reason:
        return outcome.reason
    return f"{outcome.reason} (last failure with a signature: {c.last})"


def _backoff(c: Counters, policy: Policy, rng: float) -> float:
    """Doubled with every try without progress, spread by a quarter either way, within the bounds."""
    low, high = policy.backoff
    base = min(high, low * 2.0 ** min(max(c.without_progress - 1, 0), 60))
    return min(high, max(low, base * (0.75 + rng / 2)))


def _counts(c: Counters) -> str:
    return f"{c.without_progress} starts without progress in a row, {c.waited:.0f} s waited; {_totals(c)}"


def _totals(c: Counters) -> str:
    return (
        f"in all {c.preempted} preempted, {c.crashed_progress} crashed with progress, "
        f"{c.crashed} without, {c.hung} hung"
    )
