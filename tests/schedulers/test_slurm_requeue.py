"""A Slurm job that ends unfinished is queued again, whatever its tools do; one that was cancelled is not."""

from __future__ import annotations

import signal
import time

from tests.e2e.conftest import MakeRun
from tests.e2e.harness import Run
from tests.schedulers.fake_slurm import FakeSlurm
from tests.schedulers.in_slurm import job, leaving, left, started, verdicts


def test_a_cancelled_job_stays_cancelled(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """TERM long before the end is a cancel, though Slurm then tells that moment as the end: not queued again."""
    slurm.say("end", int(time.time()) + 5000)
    supervisor = started(make_run, slurm)
    supervisor.until(lambda: supervisor.run.records("deadline"), "the end to be known")
    slurm.say("end", int(time.time()))
    slurm.say("state", "COMPLETING")
    supervisor.send(signal.SIGCONT)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    [(how, reason)] = verdicts(supervisor.run)
    assert how == "none", reason
    assert "cancel" in reason
    assert not slurm.calls("scontrol requeue")
    assert not slurm.calls("sbatch")


def test_what_is_not_a_machines_doing(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """A run that is done, one that a person stopped, and Ctrl-C are not queued again."""
    done = started(make_run, slurm, job(steps=20))
    assert done.wait() == 0
    held = started(make_run, slurm)
    assert held.run.cli("stop", str(held.run.directory.path)).code == 0
    assert held.wait() == 70
    interrupted = started(make_run, slurm)
    interrupted.send(signal.SIGINT)
    assert interrupted.wait() == 75
    reasons = [verdicts(s.run)[0] for s in (done, held, interrupted)]
    assert reasons == [
        ("none", "the run is done"),
        ("none", "the run is held"),
        ("none", "a person ended it with SIGINT"),
    ]
    assert not slurm.calls("scontrol requeue")
    assert not slurm.calls("sbatch")


def test_by_hand_in_an_allocation(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """In a shell of salloc the end counts, and the allocation is not queued again."""
    slurm.say("end", int(time.time()) + 3)
    run: Run = make_run(job(), env={k: v for k, v in slurm.env().items() if k != "SLURM_TASK_PID"})
    assert run.start().wait() == 75
    assert verdicts(run) == [("none", "it was started by hand inside an allocation")]
    assert not slurm.calls("scontrol")


def test_refused_it_is_submitted_again(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """Where Slurm refuses to queue the job again, its own script is submitted, after this job and without its marks."""
    slurm.mode("requeue", "refused")
    run = left(make_run, slurm)
    [call] = slurm.calls("sbatch")
    assert "--dependency=afterany:7" in call
    assert "#SBATCH --signal=B:USR1@120" in (slurm.control / "submitted").read_text()
    assert (slurm.control / "submitted-env").read_text().split() == ["none", "none", "none"]
    assert (run.status() or {})["requeue"] == "Slurm job 7: submitted again as job 8"


def test_without_scontrol_the_script_is_written_anew(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """Without scontrol sbatch gets the script that `outlast slurm` would print, for the array's one task."""
    slurm.remove("scontrol")
    run = left(make_run, slurm, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    [call] = slurm.calls("sbatch")
    assert "--array=3" in call
    assert "--dependency=afterany:7_3" in call
    script = (slurm.control / "submitted").read_text()
    assert "trap '' USR1" in script
    assert str(run.directory.path) in script


def test_it_is_the_last_act(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """When Slurm is told to queue the job again all that led there is on disk, since it ends us for it."""
    supervisor = leaving(make_run, slurm)
    slurm.say("journal", supervisor.run.directory.journal)
    assert supervisor.wait() == 75
    then = (slurm.control / "journal-then").read_text()
    for event in ("attempt_ended", "supervisor_stopped", "requeue"):
        assert f'"event":"{event}"' in then.replace('": "', '":"'), then


def test_a_missing_tool_is_named(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """With neither tool the code is 75, and the message names both and says what to do."""
    slurm.remove("scontrol", "sbatch")
    run = left(make_run, slurm)
    said = run.supervisors[0].output
    assert "scontrol is not in PATH" in said
    assert "sbatch is not in PATH" in said
    assert "submit the job once more" in said
    assert [r.data["ok"] for r in run.records("requeued")] == [False]


def test_the_job_file_says_how(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """requeue: never asks nothing of Slurm; resubmit leaves scontrol requeue alone; slurm leaves sbatch alone."""
    left(make_run, slurm, "never")
    assert not slurm.calls("scontrol")
    left(make_run, slurm, "resubmit")
    assert len(slurm.calls("sbatch")) == 1
    assert not slurm.calls("scontrol requeue")
    slurm.remove("sbatch")
    slurm.mode("requeue", "refused")
    run = left(make_run, slurm, "slurm")
    assert "sbatch" not in run.supervisors[0].output


def test_a_controller_that_is_away_is_waited_for(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """While the controller is down the requeue is tried again; when it is back, pending already is success."""
    slurm.mode("scontrol", "down")
    supervisor = leaving(make_run, slurm)
    supervisor.until(lambda: len(slurm.calls("scontrol requeue")) >= 2, "a second try")
    assert not supervisor.run.of_attempts()
    slurm.say("restarts", 1)
    slurm.mode("scontrol", "")
    assert supervisor.wait() == 75
    assert [r.data["ok"] for r in supervisor.run.records("requeued")] == [True]
    assert not slurm.calls("sbatch")


def test_a_cancel_while_the_controller_is_away(make_run: MakeRun, slurm: FakeSlurm) -> None:
    """TERM while the requeue waits for the controller is judged as any TERM: far from the end it is a cancel."""
    slurm.say("end", int(time.time()) + 5000)
    slurm.mode("scontrol", "down")
    supervisor = leaving(make_run, slurm)
    supervisor.until(lambda: "trying again in 2 s" in supervisor.output, "two tries in vain")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 75
    assert [how for how, _ in verdicts(supervisor.run)] == ["requeue", "none"]
    assert "cancel" in verdicts(supervisor.run)[1][1]
