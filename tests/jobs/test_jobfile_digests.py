"""The digests of a job: what makes it another one, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.jobs.jobfiles import WHOLE, loaded, written

from outlast_jobs import resolved
from outlast_jobs.jobfile import (
    Job,
    Keep,
    Signals,
    Slurm,
    command_digest,
    job_digest,
    job_from_command,
    load_job,
)


def test_digests_follow_what_is_asked_for_and_not_where_it_lies(tmp_path: Path) -> None:
    """Moving a job changes no digest; another policy changes the job's; another argument changes both."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, WHOLE)
    job, moved = load_job(tmp_path / "a/job.yaml"), load_job(tmp_path / "b/job.yaml", run_dir="elsewhere")
    assert (job_digest(moved), command_digest(moved)) == (job_digest(job), command_digest(job))
    policy = msgspec.structs.replace(job, keep=Keep(last=4))
    assert job_digest(policy) != job_digest(job)
    assert command_digest(policy) == command_digest(job)
    for other in (
        msgspec.structs.replace(job, command=(*job.command, "--seed=2")),
        msgspec.structs.replace(job, env={"OMP_NUM_THREADS": "2"}),
    ):
        assert job_digest(other) != job_digest(job)
        assert command_digest(other) != command_digest(job)


def test_a_place_in_a_queue_changes_no_digest(tmp_path: Path) -> None:
    """Another priority is the same job, so it lifts no hold."""
    assert job_digest(loaded(tmp_path, "")) == job_digest(loaded(tmp_path, "daemon: {priority: 9}"))


def test_digests_do_not_know_which_python_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run stays finished when the environment is made anew in another place."""
    file = written(tmp_path, "name: x\ncommand: ['{python}', train.py]\n")
    before = job_digest(load_job(file))
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python3")
    assert load_job(file).command[0] == "/elsewhere/bin/python3"
    assert job_digest(load_job(file)) == before


def test_an_explicit_default_changes_no_digest(tmp_path: Path) -> None:
    """Writing out what holds anyway is no change of the job."""
    assert job_digest(loaded(tmp_path, "")) == job_digest(loaded(tmp_path, "keep: {last: 3}\nsick: stop"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env": {"A": "b"}},
        {"workdir": "/w", "run_dir": "/r", "source": "/s/job.yaml"},
        {"keep": Keep(last=4)},
        {"signals": Signals(mode="outlast")},
        {"slurm": Slurm()},
        {"start_from": "/w/step"},
        {"preload": ("torch", "numpy")},
        {"standby": True},
        {"notices": ("aws",)},
    ],
)
def test_the_short_way_to_a_digest_leads_to_the_same(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is as by default is digested without a look at the model's keys, and alike."""
    job: Job = msgspec.structs.replace(job_from_command(("sh", "-c", "true")), **changes)
    found = job_digest(job)
    monkeypatch.setattr(resolved, "_set", lambda job: resolved._plain(job, defaults=False))
    assert job_digest(job) == found
