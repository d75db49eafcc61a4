"""Find the generation to resume from, set aside what is bad on the way, and claim the checkpoints folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from outlast_jobs import events as journal
from outlast_jobs import verify
from outlast_jobs.claim import claim
from outlast_jobs.errors import Fenced
from outlast_jobs.generation import GenerationName
from outlast_jobs.jobfile import Job
from outlast_jobs.verify import Verdict

from . import events as ev
from .actions import Choose
from .chores import Desk, furthest_step, remember, set_aside, taken_over

CURE = (
    "look at them with: outlast verify; repair or remove what is bad, name one with --from, "
    "or begin anew with --fresh"
)

Answer = ev.Chosen | ev.Unusable | ev.ChooseFailed | ev.RunGone


def choose(desk: Desk, job: Job, order: Choose, forced: str | None) -> Answer:
    """Carry out a Choose. ``forced`` is the generation that a person named with --from, or None."""
    try:
        # before a claim, which would take the run from whoever has it by now
        if by := taken_over(desk):
            return ev.RunGone(by, taken=True)
        # first of all: a stale attempt that sealed after we chose would have trained for nothing
        attempt = _claimed(desk, order.attempt)
        found = _found(desk, job, order, forced)
        verified = newest_verified(desk)
        if isinstance(found, ev.Unusable):
            return ev.Unusable(found.reason, verified)
        if not isinstance(found, ev.Chosen):
            return found
    except (OSError, Fenced) as error:
        gone = not os.path.lexists(desk.run.path)
        what = (
            f'the run directory "{desk.run.path}" is gone'
            if gone
            else "cannot look at or claim the checkpoints"
        )
        return ev.ChooseFailed(f"{what}: {_said(error)}", "", gone)
    replay_until = furthest_step(desk, attempt)
    return ev.Chosen(
        attempt, found.name, found.path, found.step, found.own, found.why, replay_until, verified
    )


def newest_verified(desk: Desk) -> str:
    """The name of the newest generation that is remembered as read back whole; empty where there is none."""
    return str(max(filter(None, map(GenerationName.parse, desk.remembered)), default=""))


def _found(desk: Desk, job: Job, order: Choose, forced: str | None) -> Answer:
    if job.adopt is not None:
        from .adopting import adopt  # here: most jobs have no need of it

        return adopt(desk, job.adopt, job.workdir, order, forced)
    return _forced(desk, forced) if forced else _newest(desk, job, order)


def _said(error: OSError | Fenced) -> str:
    if isinstance(error, Fenced) or not error.strerror:
        return str(error)
    place = f': "{error.filename}"' if error.filename else ""
    return f"{error.strerror}{place}; make room or give access"


def _claimed(desk: Desk, wanted: int) -> int:
    if desk.claimed < wanted:  # a second look for the same start has its claim already
        attempt = max(wanted, desk.run.highest_attempt() + 1)
        desk.claiming = attempt
        claim(desk.run.checkpoints, attempt)
        desk.claimed = attempt
    return desk.claimed


def _newest(desk: Desk, job: Job, order: Choose) -> Answer:
    healthy = order.resume == "healthy" or job.sick == "stop"
    first = verify.newest_usable(desk.run.checkpoints, desk.run_id, desk.remembered, healthy_only=healthy)
    unreadable = _deal_with(desk, first, order.pass_over)
    if unreadable is not None:
        return unreadable
    why = "the newest that passes verification"
    choice = first
    if first.chosen is None and healthy and any(f.verdict is Verdict.VERIFIED for f in first.tried):
        why = "no healthy one is left, so the newest that passes verification"
        choice = verify.newest_usable(desk.run.checkpoints, desk.run_id, desk.remembered, skip=desk.bad)
    elif first.chosen is not None and order.resume == "older":
        skip = {*desk.bad, *(f.path.name for f in first.tried)}
        older = verify.newest_usable(desk.run.checkpoints, desk.run_id, desk.remembered, skip=skip)
        unreadable = _deal_with(desk, older, order.pass_over)
        if unreadable is not None:
            return unreadable
        if older.chosen is not None:
            choice, why = (
                older,
                f"one step back for this start, since restoring {first.chosen.path.name} failed",
            )
    elif first.chosen is not None and len(first.tried) > 1:
        why = f"{len(first.tried) - 1} newer could not be used"
    if choice.chosen is not None:
        return _chosen(desk, choice.chosen, True, why)
    if not choice.from_zero:
        return ev.Unusable(_nothing_usable(desk.run.checkpoints, choice))
    if job.start_from is not None:
        return _start_from(desk, Path(job.start_from))
    return ev.Chosen(0, None, None, 0, True, "no generation yet", 0)


def _deal_with(desk: Desk, choice: verify.Choice, pass_over: bool) -> ev.ChooseFailed | None:
    """Set aside what is bad; an answer only where something must be looked at again later."""
    for finding in choice.tried:
        name = finding.path.name
        if finding.verdict in (Verdict.CORRUPT, Verdict.INCOMPLETE):
            set_aside(desk, name, finding.reason, str(finding.verdict))
        elif finding.verdict is Verdict.UNREADABLE:
            if not pass_over:
                return ev.ChooseFailed(f"{name} cannot be looked at: {finding.reason}", name)
            desk.record(journal.PASSED_OVER, {"generation": name, "reason": finding.reason})
        elif finding.verdict is Verdict.FOREIGN:
            desk.record(journal.PASSED_OVER, {"generation": name, "reason": finding.reason})
    return None


def _chosen(desk: Desk, finding: verify.Finding, own: bool, why: str) -> ev.Chosen:
    name = finding.path.name
    if own and finding.full and desk.remembered.get(name) != finding.stats:
        remember(desk, finding)
    return ev.Chosen(0, name, str(finding.path.absolute()), finding.step or 0, own, why, 0)


def _start_from(desk: Desk, path: Path) -> Answer:
    finding = verify.look(path, None, full=True)
    if finding.verdict is Verdict.VERIFIED:
        return _chosen(desk, finding, False, "start_from, until the run has a generation of its own")
    if finding.verdict is Verdict.UNREADABLE:
        return ev.ChooseFailed(f'start_from "{path}" cannot be looked at: {finding.reason}', path.name)
    return ev.Unusable(f'start_from "{path}" is {finding.verdict}: {finding.reason}')


def _forced(desk: Desk, forced: str) -> Answer:
    path = desk.run.checkpoints / forced
    if not path.is_dir():
        path = Path(forced)
    own = os.path.realpath(path.parent) == os.path.realpath(desk.run.checkpoints)
    finding = verify.look(path, desk.run_id if own else None, full=True)
    if finding.verdict is not Verdict.VERIFIED:
        return ev.Unusable(f'--from "{forced}" is {finding.verdict}: {finding.reason}')
    return _chosen(desk, finding, own, "named with --from")


def _nothing_usable(checkpoints: Path, choice: verify.Choice) -> str:
    lines = [f"{f.path.name} is {f.verdict}: {f.reason}" for f in choice.tried]
    lines += [f"{path.name} was set aside before" for path in choice.set_aside]
    shown = lines[:5] + ([f"and {len(lines) - 5} more"] if len(lines) > 5 else [])
    with contextlib.suppress(ValueError):
        checkpoints = checkpoints.relative_to(Path.cwd())
    # the cure before the list, whose end is cut where a line is too long
    return (
        f'no usable checkpoint in "{checkpoints}", and a run that has some does not start from zero; {CURE}; '
        f"found: {'; '.join(shown)}"
    )
