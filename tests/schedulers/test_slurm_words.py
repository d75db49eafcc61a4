"""What Slurm's environment and the words of its tools mean, as Slurm 22.05 was seen to say them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast_supervisor.schedulers import slurm
from outlast_supervisor.schedulers.slurm import Job, Place, Unanswered
from outlast_supervisor.schedulers.tools import Outcome

BATCH = {"SLURM_JOB_ID": "7", "SLURM_TASK_PID": "812"}
SHOWN = """JobId=7 JobName= Requeue=1 Restarts=9 BatchFlag=0
   UserId=a(1000) GroupId=a(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:03 TimeLimit=1-00:10:00 TimeMin=N/A
   PreemptEligibleTime=1795981663 PreemptTime={preempt}
   Command=/home/a/JobState=CANCELLED Reason=x
"""


def shown(state: str = "RUNNING", reason: str = "None", restarts: int = 0, preempt: str = "None") -> Outcome:
    return Outcome("ok", SHOWN.format(state=state, reason=reason, restarts=restarts, preempt=preempt))


def test_where_we_are() -> None:
    """A batch script and its steps are the job; a shell of salloc, a terminal and another run's worker are not."""
    assert slurm.place(BATCH) == Place("7", 0)
    assert not slurm.place({**BATCH, "SLURM_STEP_ID": "0"}).by_hand
    assert not slurm.place({**BATCH, "ENVIRONMENT": "BATCH", "SLURM_PTY_PORT": "40101"}).by_hand
    for by_hand in (
        {"SLURM_JOB_ID": "7"},
        {**BATCH, "SLURM_PTY_PORT": "40101"},
        {**BATCH, "SLURM_STEP_ID": "4294967290"},
        {**BATCH, "OUTLAST_RUN_ID": "0" * 32},
    ):
        assert slurm.place(by_hand).by_hand, by_hand
    assert not slurm.place({**BATCH, "OUTLAST_RUN_ID": "0" * 32}, submitted=True).by_hand


def test_a_job_that_a_worker_has_submitted_bears_its_mark_from_its_first_process_on() -> None:
    """The batch script does, whether or not it goes on as outlast; that of the job in which a worker runs does not."""
    code = "import os; from outlast_supervisor.processes import was_submitted_by_worker as w; print(w(os.environ))"
    known = {key: value for key, value in os.environ.items() if key != "OUTLAST_RUN_ID"}

    def told(script: str, **marks: str) -> str:
        words = ["sh", "-c", f"export SLURM_TASK_PID=$$; {script}", "sh", sys.executable, "-c", code]
        return subprocess.run(words, env=known | marks, check=True, capture_output=True, text=True).stdout

    goes_on, waits = 'exec "$@"', '"$@"; exit $?'
    assert told(goes_on, OUTLAST_RUN_ID="a") == "True\n"
    assert told(waits, OUTLAST_RUN_ID="a") == "True\n"
    assert told(f"export OUTLAST_RUN_ID=a; {waits}") == "False\n"


def test_the_last_task_of_an_array_is_named_as_one() -> None:
    """Its job id is the array's own, which would name all tasks; every other task's is its own."""
    array = {**BATCH, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"}
    found = slurm.place(array)
    assert (found.job, found.task, found.restarts) == ("7_3", "3", 2)
    words = slurm.resubmit(found, None, "#!/bin/sh\n")
    assert "--array=3" in words
    assert words[-1] == "--dependency=afterany:7_3"
    assert slurm.place({**array, "SLURM_JOB_ID": "6", "SLURM_ARRAY_JOB_ID": "5"}).job == "6"


def test_the_end_in_the_environment() -> None:
    """Newer Slurm says the end in the environment; anything but a time there is passed over."""
    assert slurm.place({**BATCH, "SLURM_JOB_END_TIME": "1795981663"}).end == 1795981663.0
    for text in ("", "0", "Unknown", "-5", "1e9"):
        assert slurm.place({**BATCH, "SLURM_JOB_END_TIME": text}).end is None


@pytest.mark.parametrize("text", ["NONE", "UNLIMITED", "N/A", "NONE RUNNING", "Unknown RUNNING"])
def test_no_end(text: str) -> None:
    """A job without a limit has no end, which is an answer."""
    assert slurm.read_end(Outcome("ok", text)) is None


def test_an_end() -> None:
    """An end is unix seconds, or local time from a Slurm that knows no other form."""
    assert slurm.read_end(Outcome("ok", "1795981663 RUNNING\n")) == 1795981663.0
    assert slurm.read_end(Outcome("ok", "1795981663")) == 1795981663.0
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1795981663))
    assert slurm.read_end(Outcome("ok", f"{local} RUNNING")) == 1795981663.0


@pytest.mark.parametrize("state", ["COMPLETING", "PENDING", "CANCELLED", "TIMEOUT", "REQUEUED"])
def test_the_end_of_a_job_that_is_over_is_none(state: str) -> None:
    """After a cancel Slurm gives that moment as the end, after a requeue an estimate: neither is one."""
    assert isinstance(slurm.read_end(Outcome("ok", f"1795981663 {state}")), Unanswered)


def test_the_end_of_a_heterogeneous_job_is_that_of_its_first_part_to_end() -> None:
    """squeue has a line for each part; one that has ended already, or has no limit, says nothing of the others."""
    for text, end in (
        ("1795981663 RUNNING\n1795981660 RUNNING", 1795981660.0),
        ("1795981600 COMPLETING\n1795981663 RUNNING", 1795981663.0),
        ("NONE RUNNING\n1795981663 RUNNING", 1795981663.0),
        ("NONE RUNNING\nNONE RUNNING", None),
    ):
        assert slurm.read_end(Outcome("ok", text)) == end
    assert isinstance(slurm.read_end(Outcome("ok", "1 CANCELLED\n2 CANCELLED")), Unanswered)


def test_what_is_no_answer() -> None:
    """Nothing, an error and words are no end, and each is told in its own way."""
    said = [
        slurm.read_end(Outcome("ok", "")),
        slurm.read_end(Outcome("ok", "1795981663 RUNNING again")),
        slurm.read_end(Outcome("failed", err="slurm_load_jobs error: Invalid job id specified")),
        slurm.read_end(Outcome("ok", "soon")),
    ]
    assert all(isinstance(found, Unanswered) for found in said), said
    assert len({str(found) for found in said}) == len(said)


@given(st.text(max_size=60))
def test_whatever_squeue_says_is_understood_or_refused(text: str) -> None:
    """No output makes the reader fail, and what it takes for an end is a plausible time."""
    found = slurm.read_end(Outcome("ok", text))
    assert found is None or isinstance(found, Unanswered) or 0 < found < 1e12


@given(st.text(max_size=200))
def test_whatever_scontrol_says_is_understood_or_refused(text: str) -> None:
    """No output makes the reader of a job fail."""
    assert isinstance(slurm.read_job(Outcome("ok", text)), (Job, Unanswered))


def test_what_became_of_a_job() -> None:
    """State, reason, restarts and preemption are read from their own lines, whatever name and command contain."""
    assert slurm.read_job(shown()) == Job("RUNNING", "None", 0, True, False, "1-00:10:00")
    found = slurm.read_job(shown("COMPLETING", "TimeLimit", 2, "1795981117"))
    assert found == Job("COMPLETING", "TimeLimit", 2, True, True, "1-00:10:00")
    both = slurm.read_job(shown("TIMEOUT,COMPLETING"))
    assert isinstance(both, Job)
    assert (both.state, both.reason) == ("TIMEOUT", "TimeLimit")
    both = slurm.read_job(shown("PREEMPTED,COMPLETING"))
    assert isinstance(both, Job)
    assert both.preempted
    assert isinstance(slurm.read_job(Outcome("missing", err="scontrol is not in PATH")), Unanswered)


def test_what_a_requeue_brought() -> None:
    """Done, and already pending, are success; a controller that is away may be back; a refusal stays one."""
    assert slurm.is_queued(Outcome("ok"))
    assert slurm.is_queued(Outcome("failed", err="Job is pending execution for job 7"))
    for passing in (
        Outcome("late"),
        Outcome("killed"),
        Outcome("failed", err="slurm_requeue: Unable to contact slurm controller (connect failure)"),
        Outcome("failed", err="Unexpected message received for job 7"),
        Outcome("failed", err="Socket timed out on send/recv operation"),
    ):
        assert slurm.may_pass(passing), passing
        assert not slurm.is_queued(passing), passing
    for final in (
        Outcome("missing"),
        Outcome("failed", err="Requested operation is presently disabled for job 7"),
        Outcome("failed", err="Access/permission denied for job 7"),
        Outcome("failed", err="Only batch jobs are accepted or processed for job 7"),
    ):
        assert not slurm.may_pass(final), final
        assert not slurm.is_queued(final), final


def test_the_environment_of_a_query() -> None:
    """A query is not changed by a person's formats and filters, and times come in unix seconds."""
    env = slurm.query_env(
        {"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "PD", "SLURM_CONF": "c", "LC_ALL": "de_DE.UTF-8"}
    )
    assert env == {"SLURM_CONF": "c", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def test_the_environment_of_a_new_job() -> None:
    """What Slurm told this job is no wish for the next, and nothing of ours goes with it."""
    env = slurm.submit_env(
        {
            "SLURM_MEM_PER_CPU": "200",
            "SLURM_CONF": "c",
            "SBATCH_ACCOUNT": "a",
            "SBATCH_WAIT": "1",
            "OUTLAST_RUN": "r",
        }
    )
    assert env == {"SLURM_CONF": "c", "SBATCH_ACCOUNT": "a"}


def test_the_limit_of_a_new_job() -> None:
    """The script's own limit comes first: moving a job's end changes its limit; else it is this job's."""
    job = Job("RUNNING", "None", 0, True, time_limit="00:10:00")
    assert "--time=00:10:00" in slurm.resubmit(slurm.place(BATCH), job, "#!/bin/sh\n#SBATCH -p low\n")
    for line in ("#SBATCH --time=04:00:00", "#SBATCH -t 10", "#SBATCH -p low --time 5"):
        words = slurm.resubmit(slurm.place(BATCH), job, f"#!/bin/sh\n{line}\n")
        assert not [word for word in words if word.startswith("--time")], line
