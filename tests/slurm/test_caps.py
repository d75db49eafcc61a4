"""The end of the time limit: what was trained is kept, and the job comes back by itself until it is done."""

from __future__ import annotations

import os
import signal

from tests.e2e.reference import toy
from tests.realparts import needs
from tests.slurm.site import Site, counting

pytestmark = needs("slurm", "namespaces")


def test_a_chain_of_caps(site: Site) -> None:
    """Three caps in a chain: the run comes to the same bits, with one history, one log, and one follower of it."""
    job = toy("--step-seconds", "0.02", workers=1, save={"every_steps": 60}, slurm={"warn": "30s"})
    submitted = site.submit("chain", job, "-o", "mem=2G")
    run = submitted.run
    followed = run.folder / "followed.txt"
    follower = site.follow(run, followed)
    for number, step in ((1, 90), (2, 170), (3, 250)):
        submitted.until(lambda n=number, s=step: (run.last_step(n) or 0) >= s, f"attempt {number}")
        submitted.cap()
        submitted.until_restart(number)
        last = run.last_step(number) or 0
        assert run.verified()[0].step == last, f"no step is lost\n{submitted.report()}"
    submitted.ends()
    assert run.attempts() == [1, 2, 3, 4]
    site.reference().hold_end(run)
    assert follower.wait(60) == 0, "outlast logs -f ends with the run"
    logs = "".join(run.directory.attempt_log(number).read_text() for number in run.attempts())
    assert followed.read_text() == logs
    assert [f"attempt {number} " in submitted.output for number in run.attempts()] == [True] * 4


def test_a_warning_in_the_first_moment(site: Site) -> None:
    """A warning that comes while Python has not reached its first line ends nothing."""
    submitted = site.submit("early", counting())
    os.kill(submitted.until(submitted.supervisor_now, "the supervisor"), signal.SIGUSR1)
    submitted.until_counted(5, attempt=1)
    submitted.enough()
    submitted.ends()
    assert submitted.restarts() == 0


def test_a_job_that_was_submitted_from_within_another(site: Site) -> None:
    """It has inherited what was told an array's task, a terminal's step, or a worker, and minds its own end."""
    (task,) = site.submit_array("around", counting(), 1)
    run = site.make("inside", counting())
    run.env |= {"SLURM_ARRAY_JOB_ID": task.id.partition("_")[0], "SLURM_ARRAY_TASK_ID": "0"}
    run.env |= {"SLURM_PTY_PORT": "40101", "SLURM_STEP_ID": "0", "OUTLAST_RUN_ID": "0" * 32}
    inside = site.submit_run(run)
    inside.until_counted(5)
    inside.cap()
    inside.until_restart(1)
    inside.until_counted(1, attempt=2)
    for each in (task, inside):
        each.enough()
        each.ends()
    assert (task.restarts(), inside.restarts()) == (0, 1)


def test_one_task_of_an_array(site: Site) -> None:
    """Of an array each task that reached its cap is queued again alone, also the last, whose job id is the array's."""
    tasks = site.submit_array("array", counting(), 3, "--", "--label=task {task}")
    last = tasks[-1]
    for task in tasks:
        task.until_counted(5)
    assert last.facts()["JobId"] == last.facts()["ArrayJobId"] == last.id.partition("_")[0]
    for capped in (tasks[0], last):
        capped.cap()
        capped.until_restart(1)
        capped.until_counted(1, attempt=2)
    for task in tasks:
        task.enough()
        task.ends()
        steps = [step for step, _, _ in task.counted()]
        assert steps == list(range(1, len(steps) + 1)), "each task has a count of its own, without a gap"
        assert f"--label=task {task.id[-1]}" in task.run.log(1)
    assert [task.restarts() for task in tasks] == [1, 0, 1]
    assert [task.run.attempts() for task in tasks] == [[1, 2], [1], [1, 2]]


def test_done_is_done(site: Site) -> None:
    """A job that is done ends once and is not queued again, and neither is one that finds the run done."""
    submitted = site.submit("done", counting("--steps", 5))
    submitted.ends()
    assert submitted.restarts() == 0
    cluster = submitted.cluster
    again = submitted.run.cli("slurm", str(submitted.run.job_file), "--submit", "-q").out.strip()
    submitted.id = again
    submitted.ends()
    assert cluster.job(again)["Restarts"] == "0"
    assert submitted.run.attempts() == [1]


def test_given_up_is_given_up(site: Site) -> None:
    """A job whose run is given up ends with 70 and is not queued again."""
    restart = {"backoff": "10ms..20ms", "never_on": [3]}
    submitted = site.submit("hopeless", counting("--exit", 3, restart=restart))
    submitted.ends("FAILED", "70:0")
    assert submitted.restarts() == 0
