"""The shortest time limit that Slurm has, with nothing helped along. Submitted first, waited for last."""

from __future__ import annotations

from tests.e2e.reference import STEPS, toy
from tests.realparts import needs
from tests.slurm.site import Site

pytestmark = needs("slurm", "namespaces")

_SLOW = ("--step-seconds", "0.13")  # with two starts and a save longer than the limit of a minute


def test_a_real_limit_of_a_minute(site: Site) -> None:
    """A job with `-t 1` saves before its end, is queued again by itself, and ends as if nothing had happened."""
    job = toy(*_SLOW, workers=0, save={"every_steps": 10**6}, slurm={"time": "1", "warn": "25s"})
    submitted = site.submit("minute", job, "-o", "mem=2G")
    submitted.ends()
    run = submitted.run
    assert submitted.restarts() >= 1
    ends = [record for record in run.records("attempt_ended") if record.data["outcome"] == "saved"]
    assert len(ends) == submitted.restarts(), run.report()
    assert sum(bool(run.metrics(attempt)) for attempt in run.attempts()) == submitted.restarts() + 1
    notices = [str(record.data["signal"]) for record in run.records("notice")]
    assert notices[0] == "SIGUSR1", "Slurm's own warning arrived"
    assert notices[1].startswith("the deadline (the end of Slurm job"), (
        "and it trained on until the last moment"
    )
    kept = [line["step"] for attempt in run.attempts() for line in run.metrics(attempt)]
    assert kept == list(range(1, STEPS + 1)), "a step was trained twice or not at all"
    site.reference().hold_end(run)
