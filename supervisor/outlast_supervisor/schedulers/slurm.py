"""What a Slurm job knows of itself, and how its tools are asked: words, environments, and what answers mean.

Forms and messages were measured on Slurm 22.05; squeue(1), scontrol(1) and sbatch(1) describe them. Nothing here
touches the world.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from msgspec import Struct

from outlast_jobs.contract import Env

from .tools import Outcome

_RUNNING = frozenset({"RUNNING", "SUSPENDED", "SIGNALING", "RESIZING", "CONFIGURING", "STAGE_OUT", "STOPPED"})
_NO_END = frozenset({"NONE", "UNLIMITED", "N/A", "NA", "UNKNOWN", "NOT_SET", "INVALID", "(NULL)"})
_INTERACTIVE_STEP = "4294967290"  # SLURM_INTERACTIVE_STEP of slurm.h: the shell that salloc opens on a node
_PASSING = re.compile(
    r"unable to contact|socket timed out|unexpected message|connection (refused|timed out|reset)|"
    r"not responding|zero bytes|transport endpoint|timed? ?out|temporar|protocol authentication|munge|"
    r"configuration source|in standby|try again|unable to establish",
    re.IGNORECASE,
)
_PENDING = re.compile(r"pending execution", re.IGNORECASE)
_STATE = re.compile(r"^\s+JobState=(\S+) Reason=(\S+)", re.MULTILINE)
_COUNTS = re.compile(r"^\s+Requeue=\d+ Restarts=(\d+) BatchFlag=(\d+)", re.MULTILINE)
_PREEMPTED = re.compile(r"^\s+(?:PreemptEligibleTime=\S+ )?PreemptTime=([\dT:-]+)$", re.MULTILINE)
_LIMIT = re.compile(r"^\s+RunTime=\S+ TimeLimit=(\S+)", re.MULTILINE)
_OWN_TIME = re.compile(r"^#SBATCH\b.*\s(--time\b|-t\b)", re.MULTILINE)
_WISHES = {
    "job-name": "SLURM_JOB_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
    "chdir": "SLURM_SUBMIT_DIR",
}


class Place(Struct, frozen=True):
    """Where in Slurm this process is."""

    job: str  # as its tools take it: 12, or 10_3 for the last task of an array
    restarts: int  # how often the job was queued again before
    task: str = ""  # the number of the array's task
    by_hand: str = ""  # why this is not what Slurm started as the job, or empty
    end: float | None = None  # unix seconds, where the environment has it
    wishes: tuple[tuple[str, str], ...] = ()  # options of sbatch, as this job got them

    @property
    def name(self) -> str:
        """For people."""
        return f"Slurm job {self.job}"


class Job(Struct, frozen=True):
    """What the controller says of a job."""

    state: str
    reason: str
    restarts: int
    batch: bool
    preempted: bool = False
    time_limit: str = ""


class Unanswered(Struct, frozen=True):
    """A question that brought nothing."""

    why: str


def place(env: Mapping[str, str], submitted: bool = False) -> Place:
    """Where in Slurm the environment says that we are; it has a SLURM_JOB_ID. ``submitted``: by a worker."""
    job = env.get("SLURM_JOB_ID") or env["SLURM_JOBID"]
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    of_array = array.isdecimal() and task.isdecimal()
    restarts, end = env.get("SLURM_RESTART_COUNT", ""), env.get("SLURM_JOB_END_TIME", "")
    return Place(
        # the last task's own id is the array's, which would name all tasks; and where it is another's, all of that may
        # be inherited: a task has submitted us
        job=f"{array}_{task}" if of_array and array == job else job,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        task=task if of_array else "",
        by_hand=_by_hand(env, submitted),
        end=float(end) if end.isdecimal() and int(end) > 0 else None,
        wishes=tuple((name, env[key]) for name, key in _WISHES.items() if env.get(key)),
    )


def _by_hand(env: Mapping[str, str], submitted: bool) -> str:
    if env.get(Env.RUN_ID) and not submitted:
        return "it was started by the worker of another run"
    if not env.get("SLURM_TASK_PID"):  # what salloc opens and what ssh is let into do not have it
        return "it was started by hand inside an allocation"
    if (
        env.get("ENVIRONMENT") == "BATCH"
    ):  # so sbatch says, also where it was called in such a step, whose words follow
        return ""
    if "SLURM_PTY_PORT" in env or env.get("SLURM_STEP_ID") == _INTERACTIVE_STEP:
        return "it was started by hand in an interactive step"
    return ""


# -- asking --------------------------------------------------------------------------------------------------


def query_env(env: Mapping[str, str]) -> dict[str, str]:
    """Ours without what changes the form of an answer, or hides a job."""
    kept = {k: v for k, v in env.items() if not k.startswith(("SQUEUE_", "SCONTROL_"))}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def submit_env(env: Mapping[str, str]) -> dict[str, str]:
    """For another job: without what Slurm told this one, which sbatch would take for wishes, and without ours."""
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
    dropped = ("SLURM_", "SLURMD_", "SBATCH_WAIT", "SBATCH_DEPENDENCY", "SBATCH_ARRAY", "OUTLAST_")
    return {k: v for k, v in env.items() if k in kept or not k.startswith(dropped)}


def end_query(job: str) -> tuple[str, ...]:
    """For the end time, and the state: the end of a job that is over means nothing."""
    return ("squeue", "-h", "-j", job, "-o", "%e %T")


def job_query(job: str) -> tuple[str, ...]:
    """For what has become of the job."""
    return ("scontrol", "show", "job", job)


def read_end(outcome: Outcome) -> float | Unanswered | None:
    """The end in unix seconds; None where the job has none. Of a heterogeneous job's parts the first to end counts."""
    if not outcome.ok:
        return Unanswered(short(outcome.err))
    said = [_end(line.split()) for line in outcome.out.splitlines() if line.strip()]
    if not said:
        return Unanswered("squeue knows no such job")
    known = [end for end in said if not isinstance(end, Unanswered)]
    return min((end for end in known if end is not None), default=None) if known else said[0]


def _end(words: list[str]) -> float | Unanswered | None:
    if len(words) == 2 and words[1] not in _RUNNING:
        return Unanswered(f"the job is {words[1]}")  # its end is the moment of its cancel, or an estimate
    end = words[0] if len(words) <= 2 else ""
    if end.upper() in _NO_END:
        return None
    if re.fullmatch(r"\d{1,11}", end) and int(end) > 0:
        return float(end)
    try:
        return time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return Unanswered(f'squeue said "{short(" ".join(words))}", which is no end time')


def read_job(outcome: Outcome) -> Job | Unanswered:
    """What the controller says of the job."""
    if not outcome.ok:
        return Unanswered(short(outcome.err))
    state, counts = _STATE.search(outcome.out), _COUNTS.search(outcome.out)
    if state is None or counts is None:
        return Unanswered(f'scontrol said "{short(outcome.out)}", which is no job')
    limit = _LIMIT.search(outcome.out)
    states = state[1].split(",")  # some versions say base and flags, as "TIMEOUT,COMPLETING"
    return Job(
        # what comes first is what it is; a bare COMPLETING says only that it is being ended
        state=states[0],
        reason="TimeLimit" if "TIMEOUT" in states else state[2],
        restarts=int(counts[1]),
        batch=counts[2] != "0",
        preempted="PREEMPTED" in states or _PREEMPTED.search(outcome.out) is not None,
        time_limit=limit[1] if limit else "",
    )


# -- being queued again --------------------------------------------------------------------------------------


def requeue(job: str) -> tuple[str, ...]:
    return ("scontrol", "requeue", job)


def script_query(job: str) -> tuple[str, ...]:
    """For the script that the job was submitted with."""
    return ("scontrol", "write", "batch_script", job, "-")


def resubmit(place: Place, job: Job | None, script: str) -> tuple[str, ...]:
    """Another job by the script on standard input; it waits for our end, or it would find the run's lock busy."""
    wishes = dict(place.wishes)
    if place.task:
        wishes["array"] = place.task  # this task alone
    # what the script says comes first: who moves a job's end changes its limit too
    if job is not None and job.time_limit not in ("", "Partition_Limit") and not _OWN_TIME.search(script):
        wishes["time"] = job.time_limit
    options = (f"--{name}={value}" for name, value in wishes.items())
    return ("sbatch", "--parsable", *options, f"--dependency=afterany:{place.job}")


def is_queued(outcome: Outcome) -> bool:
    """Whether a requeue did what it should, or Slurm had done so before."""
    return outcome.ok or (outcome.kind == "failed" and bool(_PENDING.search(outcome.err + outcome.out)))


def may_pass(outcome: Outcome) -> bool:
    """Whether trying again makes sense: the tool is there, and the controller was not."""
    if outcome.kind in ("late", "killed"):
        return True
    return outcome.kind == "failed" and bool(_PASSING.search(outcome.err + outcome.out))


def is_no_batch_job(outcome: Outcome) -> bool:
    return outcome.kind == "failed" and "only batch jobs" in outcome.err.lower()


def short(text: str, most: int = 160) -> str:
    """One line of a tool's words."""
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip())
    return line if len(line) <= most else f"{line[: most - 1]}…"
