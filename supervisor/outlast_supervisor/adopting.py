"""Choose among the checkpoints of a trainer without the library: the furthest one that can be used."""

from __future__ import annotations

from pathlib import Path

from outlast_jobs import adopted
from outlast_jobs import events as journal
from outlast_jobs.jobfile_model import Adopt

from . import events as ev
from .actions import Choose
from .chores import Desk

Answer = ev.Chosen | ev.Unusable | ev.ChooseFailed


def adopt(desk: Desk, found: Adopt, workdir: str, order: Choose, forced: str | None) -> Answer:
    """The checkpoint to go on from. What was only begun is passed over; a damaged one is never taken for none."""
    if forced is not None:
        # as a person names it, and as the job does
        return _forced(found, path if (path := Path(forced)).exists() else Path(workdir, forced), forced)
    damaged: list[str] = []
    for candidate, trouble in adopted.look_through(found.pattern, workdir, found.complete, desk.adopted):
        if trouble is not None and trouble.unread and not order.pass_over:
            return ev.ChooseFailed(f"{candidate.name} {trouble.reason}", candidate.name)
        if trouble is None:
            why = f"the furthest of {found.pattern!r} that is whole"
            return _chosen(candidate, why if not damaged else f"{why}; {damaged[0]}")
        if trouble.begun:
            continue
        damaged.append(f"{candidate.name}: {trouble.reason}")
        desk.record(journal.PASSED_OVER, {"generation": candidate.name, "reason": trouble.reason})
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return ev.Unusable(
            f"no checkpoint that matches {found.pattern!r} can be used, and a run that has some does not start from "
            f"zero; repair or remove what is bad, or name one with --from; found: {damaged[0]}{more}"
        )
    return ev.Chosen(0, None, None, 0, False, f"nothing whole matches {found.pattern!r} yet", 0)


def _forced(found: Adopt, path: Path, forced: str) -> Answer:
    try:
        trouble = adopted.trouble(path, found.complete)
    except OSError as error:
        return ev.Unusable(f'--from "{forced}" can\'t be read: {error.strerror}')
    if trouble is not None:
        return ev.Unusable(f'--from "{forced}" {trouble.reason}')
    return _chosen(adopted.Candidate(path.absolute(), adopted.step_of(path.name) or 0), "named with --from")


def _chosen(candidate: adopted.Candidate, why: str) -> ev.Chosen:
    return ev.Chosen(0, candidate.name, str(candidate.path), candidate.step, False, why, 0)
