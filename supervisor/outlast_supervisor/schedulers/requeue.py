"""Whether a Slurm job that ends is to be queued again, and why. Pure.

A cancelled job stays cancelled: SIGTERM alone never brings it back, unless its time was up.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from outlast_jobs.cadence import FAR
from outlast_jobs.contract import ExitCode

from .slurm import Job

How = Literal["requeue", "resubmit"]
PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})


class Left(Struct, frozen=True):
    """Why the supervisor ends: who gave the notice, and of what kind it was."""

    of: str  # deadline, warning, signal, now; empty where nobody told it to
    source: str  # for people; the signal's name where it was one


class Facts(Struct, frozen=True):
    """All that the verdict hangs on. Instants are of one clock, in seconds."""

    code: int  # with which outlast ends
    left: Left
    told_at: float  # when it was told to end
    end: float | None  # the job's end, as known before that
    warn: float  # how long before its end the job is warned
    policy: str = "auto"  # auto, slurm, resubmit, never
    by_hand: str = ""  # why we are not what Slurm started as the job
    restarts: int = 0  # of the job, when it started
    job: Job | None = None  # what the controller says now; None where it does not answer


class Requeue(Struct, frozen=True):
    """Have the job queued again, by the first of these ways that works."""

    how: tuple[How, ...]
    reason: str


class No(Struct, frozen=True):
    """The job is not queued again, or not by us."""

    reason: str


_CODES: dict[int, str] = {
    ExitCode.DONE: "the run is done",
    ExitCode.HELD: "the run is held",
    ExitCode.BUSY: "another supervisor has the run",
    ExitCode.UNUSABLE: "a new start would find the same: no checkpoint can be used",
    ExitCode.CANNOT_WRITE: "the run directory cannot be written",
}
_WAYS: dict[str, tuple[How, ...]] = {
    "auto": ("requeue", "resubmit"),
    "slurm": ("requeue",),
    "resubmit": ("resubmit",),
}


def verdict(facts: Facts) -> Requeue | No:
    """The first rule that fits."""
    why_not = _never(facts) or _already(facts) or _cancelled(facts)
    if why_not:
        return No(why_not)
    return Requeue(_WAYS[facts.policy], _why(facts))


def asks_controller(facts: Facts) -> bool:
    """Whether what the controller says can change the verdict."""
    return not _never(facts)


def _never(facts: Facts) -> str:
    if facts.code != ExitCode.SAVED:
        return _CODES.get(facts.code, f"it ends with exit code {facts.code}")
    if facts.policy == "never":
        return "the job file says requeue: never"
    if facts.by_hand:
        return facts.by_hand
    if facts.left.of == "now":
        return f"{facts.left.source} ended it at once"
    if facts.left.of == "signal" and facts.left.source in ("SIGINT", "SIGQUIT", "SIGHUP"):
        return f"a person ended it with {facts.left.source}"
    if not facts.left.of:
        return "nobody told it to end"
    return ""


def _already(facts: Facts) -> str:
    job = facts.job
    if job is None:
        return ""
    if not job.batch:
        return "Slurm queues only batch jobs again, and this is an interactive one"
    if job.state in PENDING or job.restarts > facts.restarts:
        return "Slurm has queued it again already"
    return ""


def _cancelled(facts: Facts) -> str:
    """Why this is taken for a cancel, or empty."""
    left, job = facts.left, facts.job
    if left.of != "signal":
        return "the job was cancelled meanwhile" if job is not None and _is_cancelled(job) else ""
    if job is not None and (job.reason == "TimeLimit" or job.preempted):
        return ""
    if facts.end is None:
        return f"{left.source} came and no end of the job is known: taken for a cancel"
    # another signal than TERM is a site's warning, which may come a minute early
    slack = 0.0 if left.source == "SIGTERM" else FAR
    early = facts.end - facts.warn - slack - facts.told_at
    if early > 0:
        text = f"{left.source} came {early + facts.warn + slack:.0f} s before the end: taken for a cancel"
        if job is not None and job.state == "RUNNING":  # after a plain scancel it is not
            text += "; if it was the script's --signal, set slurm.warn in the job file to a minute more"
        return text
    return "the job was cancelled" if job is not None and _is_cancelled(job) else ""


def _is_cancelled(job: Job) -> bool:
    """It is being ended, although its time is not up, nothing preempted it and nobody queued it again."""
    return job.state == "CANCELLED" or (
        job.state == "COMPLETING" and job.reason == "None" and not job.preempted
    )


def _why(facts: Facts) -> str:
    left = facts.left
    if left.of == "signal":
        preempted = facts.job is not None and facts.job.preempted
        return f"{left.source} came " + ("at a preemption" if preempted else "when the job's time was up")
    return f"not done, stopped by {left.source}"
