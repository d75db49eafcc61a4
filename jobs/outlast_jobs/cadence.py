"""When to save: the worker's cadence, its enforcement, the automatic interval, the deadline."""

from __future__ import annotations

import math

from msgspec import Struct

FAR = 60.0
"""Seconds beyond the warning, or what a step and a save take, from which on an end is too far away to stop for."""
YOUNG = 4
"""After a restart the first save comes at this fraction of the interval: young nodes fail most."""
DOUBLED = 2.0
"""Factor on the 95th percentiles of step and save times when a deadline is near."""


class SavePolicy(Struct, frozen=True):
    """Every N steps or every T seconds, whichever comes first; either may be absent."""

    every_steps: int | None = None
    every_seconds: float | None = None
    restarted: bool = False
    asked: bool = False
    """Each save is asked for, since the interval changes while the worker runs: it is not given time to be late."""


class Due(Struct, frozen=True):
    """A save is due at this boundary."""

    reason: str


class Ask(Struct, frozen=True):
    """The worker let the interval pass: ask it for a save."""

    reason: str


class Violation(Struct, frozen=True):
    """The worker was asked and still sealed nothing for another interval."""

    reason: str


class StopNow(Struct, frozen=True):
    """The deadline leaves no room for another step: save and stop."""

    reason: str


class TrainOn(Struct, frozen=True):
    """Train on until then (on the clock that was passed in), and stop there."""

    until: float
    reason: str


class FarAway(Struct, frozen=True):
    """No deadline, or none that is near: save at once and go on. ``until`` is when it is near."""

    reason: str
    until: float | None = None


def interval(policy: SavePolicy, saved_since_start: bool) -> float | None:
    """Seconds from one save to the next; a quarter of them for the first save after a restart."""
    if policy.every_seconds is None:
        return None
    young = policy.restarted and not saved_since_start
    return policy.every_seconds / YOUNG if young else policy.every_seconds


def due(
    step: int,
    now: float,
    last_step: int,
    last_time: float,
    policy: SavePolicy,
    saved_since_start: bool,
) -> Due | None:
    """Whether the boundary after `step` is one to save at.

    `last_step` and `last_time` are those of the last save, or of the start. Steps are counted in whole
    multiples of N, not from the last save: so the same steps are saved whatever interrupted the run, and
    `keep.every_steps` finds them. Times are monotonic: a clock that jumps causes neither a burst nor a gap.
    """
    if step <= last_step:
        return None
    every = policy.every_steps
    if every is not None and step // every > last_step // every:
        return Due(f"every {every} steps")
    seconds = interval(policy, saved_since_start)
    if seconds is not None and now - last_time >= seconds:
        young = policy.restarted and not saved_since_start
        return Due(f"every {seconds:g} s" + (" for the first save after a restart" if young else ""))
    return None


def overdue_at(
    last_sealed_at: float, asked_at: float | None, policy: SavePolicy, allowance: float
) -> float | None:
    """When `overdue` will next have something to say, for a timer; None where no seconds are set."""
    if policy.every_seconds is None:
        return None
    if asked_at is not None and asked_at >= last_sealed_at:
        return asked_at + policy.every_seconds + allowance
    return last_sealed_at + policy.every_seconds + (0.0 if policy.asked else allowance)


def overdue(
    now: float,
    last_sealed_at: float,
    asked_at: float | None,
    policy: SavePolicy,
    allowance: float = 0.0,
) -> Ask | Violation | None:
    """What the supervisor does about a worker that seals nothing.

    `last_sealed_at` is the time of the last seal or of the attach; `asked_at` that of the last request or
    violation since then. `allowance` is what a step and a save take: a worker that is on time is not asked.
    """
    limit = overdue_at(last_sealed_at, asked_at, policy, allowance)
    if limit is None or now < limit:
        return None
    silent = now - last_sealed_at
    if asked_at is None or asked_at < last_sealed_at:
        return Ask(f"no generation sealed for {silent:.0f} s, the interval is {policy.every_seconds:g} s")
    return Violation(
        f"no generation sealed for {silent:.0f} s, the interval is {policy.every_seconds:g} s, "
        f"and a request {now - asked_at:.0f} s ago brought none"
    )


def auto_interval(
    save_seconds: float | None, mean_up_seconds: float | None, between: tuple[float, float]
) -> float:
    """The interval that loses least time to saves and to lost work together, within bounds.

    Daly's higher-order estimate (Future Generation Computer Systems 22, 2006), which is Young's sqrt(2 C M)
    (CACM 17, 1974) for saves short against the mean time between failures. Unmeasured means the lower bound.
    """
    low, high = between
    if save_seconds is None or mean_up_seconds is None or mean_up_seconds <= 0:
        return low
    cost, mean = max(save_seconds, 0.0), mean_up_seconds
    if cost >= 2 * mean:
        wanted = mean
    else:
        ratio = cost / (2 * mean)
        wanted = math.sqrt(2 * cost * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost
    return min(max(wanted, low), high)


def last_fit(
    now: float,
    deadline: float | None,
    step_p95: float | None,
    save_p95: float | None,
    warn: float,
) -> StopNow | TrainOn | FarAway:
    """What a warning means, given the end time: the last boundary from which a save still fits.

    `now` and `deadline` are on one clock. Unmeasured step or save times mean stopping now, the safe side.
    """
    if deadline is None:
        return FarAway("no end time is known")
    left = deadline - now
    need = DOUBLED * (step_p95 + save_p95) if step_p95 is not None and save_p95 is not None else None
    near = max(warn, need or 0.0)
    if left > near + FAR:
        why = f"the end is {left:.0f} s away, more than {near:.0f} s and {FAR:.0f} s"
        return FarAway(why, deadline - near - FAR)
    if need is None:
        return StopNow(f"{left:.0f} s left, and no step or save has been measured yet")
    if left <= need:
        return StopNow(f"{left:.0f} s left, a step and a save may take {need:.1f} s")
    return TrainOn(deadline - need, f"{left:.0f} s left, of which a step and a save may take {need:.1f} s")
