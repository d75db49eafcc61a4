"""Whoever ends a job before its time means it: the state is saved, and the job does not come back."""

from __future__ import annotations

import time

import pytest
from tests.realparts import needs
from tests.slurm.site import Site, counting

pytestmark = needs("slurm", "namespaces")

_WAYS = {
    "job": (),
    "batch": ("--batch", "--signal=TERM"),
    "full": ("--full", "--signal=TERM"),
}
_ENDS = {"job": ("CANCELLED", "75:0"), "batch": ("FAILED", "75:0"), "full": ("FAILED", "75:0")}


@pytest.mark.parametrize("way", _WAYS)
def test_a_cancelled_job_stays_cancelled(site: Site, way: str) -> None:
    """After `scancel`, of the job, of its batch process or of all its processes, the state is saved and that is it."""
    submitted = site.submit(f"cancel-{way}", counting())
    submitted.until_counted(20)
    submitted.cluster.slurm("scancel", *_WAYS[way], submitted.id)
    submitted.ends(*_ENDS[way])
    run = submitted.run
    run.nothing_left()
    counted = [step for step, _, _ in submitted.counted()]
    newest = run.verified()[0].index
    assert newest is not None
    assert newest.step == counted[-1], "the last step is saved"
    assert run.attempts() == [1]
    # nobody is left who could queue it again, so what Slurm says now it says for good
    submitted.ends(*_ENDS[way])
    assert submitted.restarts() == 0


def test_a_cancel_shortly_before_the_end(site: Site) -> None:
    """A cancel within the warning time is a cancel: Slurm is asked why it ended the job."""
    submitted = site.submit("late", counting(slurm={"warn": "120s"}))
    submitted.until_counted(20)
    submitted.cap(100)
    submitted.until(lambda: len(submitted.run.records("deadline")) > 1, "the end that has moved")
    submitted.cluster.slurm("scancel", submitted.id)
    submitted.ends("CANCELLED", "75:0")
    submitted.run.nothing_left()
    submitted.ends("CANCELLED", "75:0")
    assert submitted.restarts() == 0
    assert submitted.run.verified()[0].step == submitted.counted()[-1][0], "saved"


def test_a_job_stopped_by_a_person_is_held(site: Site) -> None:
    """`outlast stop` ends the job with 70, saved; it is not queued again."""
    submitted = site.submit("stop", counting())
    submitted.until_counted(20)
    told = submitted.run.cli("stop", str(submitted.run.directory.path))
    assert told.code == 0, told.err
    submitted.ends("FAILED", "70:0")
    assert submitted.restarts() == 0
    assert submitted.run.verified()


def test_suspend_and_resume(site: Site) -> None:
    """A job that Slurm suspends goes on in the same attempt, and knows that its end has moved."""
    submitted = site.submit("suspend", counting("--every", 20, slurm={"time": "20"}))
    run = submitted.run
    submitted.until_counted(20)
    ends = submitted.until(lambda: run.records("deadline"), "the end that it knows")
    submitted.cluster.slurm("scontrol", "suspend", submitted.id)
    before = submitted.counted()[-1]
    begun = time.monotonic()
    submitted.until(lambda: time.monotonic() > begun + 3, "some time without it")
    assert submitted.counted()[-1][0] <= before[0] + 1, "it stands still"
    submitted.cluster.slurm("scontrol", "resume", submitted.id)
    submitted.until_counted(before[0] + 20, attempt=1)

    def moved() -> bool:
        newest = run.records("deadline")[-1].data["at"]
        return newest is not None and newest >= ends[-1].data["at"] + 1.5

    submitted.until(moved, "the end that has moved")
    submitted.enough()
    submitted.ends()
    assert run.attempts() == [1]
    assert submitted.restarts() == 0
