"""Is the time between a warning and the end long enough for a step and a save."""

from __future__ import annotations

from collections.abc import Iterator

from outlast_jobs.jobfile import Job

from ..notices.watchers import EARLY
from .line import Line, failure, ok, warning
from .past import Past

# seconds that the supervisor itself takes after the worker's grace: KILL to all, and its last words
KILL_SLACK = 5.0
CLOUDS = {"aws": 120.0, "gce": 30.0, "azure": 30.0}  # seconds from a cloud's notice to the end


def enough(check: str, what: str, lead: float, past: Past, cure: str) -> Line:
    """Hold a lead in seconds against what the run's past says it needs."""
    if past.script:
        return ok(check, f"{what} is {lead:g} s; what a step and a save of its script take is not known here")
    if past.need is None:
        return warning(
            check,
            f"{what} is {lead:g} s; how long a step and a save take is known after the first save",
            "look again then",
        )
    if lead < past.need / 2:
        return failure(check, f"{what} is {lead:g} s: too short, {past.told}", cure)
    if lead < past.need:
        return warning(check, f"{what} is {lead:g} s: short, {past.told}", cure)
    return ok(check, f"{what} is {lead:g} s: enough, {past.told}")


def grace(job: Job, past: Past) -> Iterator[Line]:
    """The worker's own time after any notice, and what clouds give where they are listened to."""
    yield enough("grace", "stop.grace", job.stop.grace, past, "raise stop.grace in the job file")
    for cloud in job.notices:
        what = f"the notice of {cloud}"
        yield enough("notices", what, CLOUDS[cloud] - EARLY, past, "make steps or saves shorter")


def patience(check: str, what: str, seconds: float, job: Job, cure: str) -> Line:
    """Whether whoever ends us by TERM and later KILL waits for the worker's grace."""
    needed = job.stop.grace + KILL_SLACK
    if seconds < job.stop.grace:
        return failure(check, f"{what} is {seconds:g} s, less than stop.grace ({job.stop.grace:g} s)", cure)
    if seconds < needed:
        return warning(check, f"{what} is {seconds:g} s, stop.grace and some seconds are {needed:g} s", cure)
    return ok(check, f"{what} is {seconds:g} s, stop.grace is {job.stop.grace:g} s")
