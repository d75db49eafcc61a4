"""The shipped toy as the tests of faults use it: quick steps, no loader processes, whatever goes wrong asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.harness import Run

from outlast_jobs.jobfile import resolve_job
from outlast_jobs.journal import Record

TOY = str(resolve_job("toy").with_name("train.py"))
GIVES_UP_SOON = {"without_progress": 3, "waiting": "100ms", "backoff": "10ms..50ms"}
"""A `restart` section with which a run that never gets on ends after a few starts."""


def toy(*flags: object, steps: int = 200, step_seconds: float = 0.002, **sections: Any) -> dict[str, Any]:
    """A job file for the toy with these flags, and with these sections of the job file."""
    command = ["{python}", TOY, "--workers", 0, "--steps", steps, "--step-seconds", step_seconds, *flags]
    return {"command": [str(word) for word in command], "save": {"every_steps": 50}, **sections}


def plain(*flags: object, steps: int = 60, seconds: object = 0.002, **sections: Any) -> dict[str, Any]:
    """A job file for a loop that trains nothing and starts quickly."""
    command = ["{python}", "{scripts}/plain.py", "--steps", steps, "--seconds", seconds, *flags]
    return {"command": [str(word) for word in command], "save": {"every_steps": 50}, **sections}


def ends(run: Run) -> list[dict[str, Any]]:
    """What the journal says of each attempt's end, in order."""
    return [record.data for record in run.records("attempt_ended")]


def outcomes(run: Run) -> list[str]:
    """How each attempt ended, in order."""
    return [end["outcome"] for end in ends(run)]


def resumed(run: Run) -> list[str | None]:
    """The generation that each attempt was given, in order; None for step 0."""
    return [record.data["resume"] for record in run.records("attempt_started")]


def only(records: list[Record]) -> Record:
    """The one record that there is to be."""
    [record] = records
    return record


def steps_of(paths: list[Path]) -> list[int]:
    """The steps of generations, newest first as they come."""
    return [int(path.name.removeprefix("step-").split(".")[0]) for path in paths]
