"""When a standby is of no use: a pure comparison of what it was made from with what is wanted now."""

from __future__ import annotations

import msgspec
import pytest

from outlast_jobs.jobfile import job_from_command
from outlast_supervisor.standby import Recipe, why_useless

JOB = job_from_command(["python", "train.py"], "/run", "/work")


def recipe(environ: dict[str, str], **changes: object) -> Recipe:
    return Recipe.of(msgspec.structs.replace(JOB, **changes), environ)


@pytest.mark.parametrize(
    ("changes", "environ", "why"),
    [
        ({}, {"A": "1"}, ""),
        ({}, {"A": "1", "OUTLAST_ATTEMPT": "3", "NOTIFY_SOCKET": "/x"}, ""),
        ({"command": ("python", "other.py")}, {"A": "1"}, "the job's command changed"),
        ({"workdir": "/elsewhere"}, {"A": "1"}, "the job's workdir changed"),
        ({"preload": ("numpy",)}, {"A": "1"}, "the job's preload list changed"),
        ({"env": {"PYTHONHASHSEED": "0"}}, {"A": "1"}, "the environment changed: PYTHONHASHSEED"),
        ({}, {"B": "1"}, "the environment changed: A, B"),
        ({"save": msgspec.structs.replace(JOB.save, every_seconds=5.0)}, {"A": "1"}, ""),
    ],
)
def test_it_fits_only_where_what_it_was_made_from_is_the_same(
    changes: dict[str, object], environ: dict[str, str], why: str
) -> None:
    """Command, folder, modules and environment count; what each attempt is told anew does not."""
    assert why_useless(recipe({"A": "1"}), recipe(environ, **changes)) == why
