"""The digests of a job: what makes it another one, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tests.jobs.jobfiles import WHOLE, loaded, written

from outlast_jobs.jobfile import (
    Keep,
    command_digest,
    job_digest,
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
