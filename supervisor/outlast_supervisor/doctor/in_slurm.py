"""Inside a Slurm job: will its warning come, to us and in time, and can the job be queued again.

What reaches whom was measured on Slurm 22.05; see the batch script that `outlast slurm` writes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping

from msgspec import Struct

from outlast_jobs import jobfile
from outlast_jobs.cadence import FAR
from outlast_jobs.jobfile import Job

from ..processes import was_submitted_by_worker
from ..schedulers import slurm
from ..schedulers.tools import Outcome
from .lead import enough
from .line import Line, failure, ok, undecided, warning
from .own import Own
from .past import Past

PATIENCE = 15.0  # seconds for each question to the controller
_SIGNAL = re.compile(r"(?:(?P<to>[BR]{1,2}):)?(?:SIG)?(?P<name>\w+)(?:@(?P<seconds>\d+))?")
_FORM = "take the script that this prints: outlast slurm JOB"


class Asked(Struct, frozen=True):
    """What the job's batch script asks for as a warning."""

    to: str  # B: the batch process; empty: srun steps
    name: str  # without SIG
    seconds: int


class Slurm(Struct, frozen=True):
    """What the job is and what the controller says of it."""

    place: slurm.Place
    said: slurm.Job | slurm.Unanswered
    requeue: bool | None  # whether Slurm lets it be queued again
    script: str | None  # None where it could not be had
    tools: frozenset[str]  # which of scontrol, sbatch, squeue are in PATH
    appends: bool | None  # what the site does with output files where the job says nothing
    where: str  # batch: this is the batch process; line: a line of its script; step: of srun; elsewhere


def verdict(found: Slurm, own: Own, job: Job, past: Past) -> Iterator[Line]:
    """The lines about Slurm."""
    yield from _arrives(found, own, (job.slurm or jobfile.Slurm()).warn)
    yield from _in_time(found, past)
    yield from _again(found, job)
    yield from _log(found)


def asked_in(script: str) -> Asked | None:
    """The last `--signal` of a batch script's directives."""
    match = _SIGNAL.fullmatch(_option(script, "signal"))
    if match is None:
        return None
    return Asked(match["to"] or "", match["name"], int(match["seconds"] or 60))


def _option(script: str, name: str) -> str:
    """What the script's last directive of this name says, or empty."""
    found = ""
    for line in script.splitlines():
        if match := re.match(rf"#SBATCH\s+(?:.*\s)?--{name}[=\s]+(\S+)", line):
            found = match[1].strip("\"'")
    return found


def is_executed(script: str) -> bool | None:
    """Whether the line that runs outlast takes the shell's place; None where there is no such line."""
    for line in script.splitlines():
        if line.startswith("#"):
            continue
        words = _words(line)
        if "run" in words and any("outlast" in word for word in words):
            return words[0] == "exec"
    return None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True) or [""]
    except ValueError:
        return line.split() or [""]


def _arrives(found: Slurm, own: Own, warn: float) -> Iterator[Line]:
    name = found.place.name
    if found.where == "step":
        yield warning(
            "warning",
            f"{name}, a step of srun: at a preemption its first signal is SIGTERM, which looks like a cancel",
            f"run outlast without srun; {_FORM}",
        )
        return
    if found.place.by_hand or found.where == "elsewhere":
        why = found.place.by_hand or "this is not the batch script's own process, nor a line of it"
        yield warning(
            "warning", f"{name}: {why}; Slurm's warning does not come here", "outlast asks for the end time"
        )
        return
    script = found.script
    if script is None:
        yield undecided(
            "warning",
            f"{name}: its batch script could not be had: {_why(found)}",
            "try again when Slurm answers",
        )
        return
    executed = found.where == "batch" or is_executed(script)
    asked = asked_in(script)
    if asked is None:
        yield warning(
            "warning",
            f"{name}: its script asks for no warning; one given to sbatch itself cannot be seen",
            f"add: #SBATCH --signal=B:USR1@120; {_FORM}",
        )
    elif "B" not in asked.to:
        yield failure(
            "warning",
            f"{name}: SIG{asked.name} goes to the steps of srun alone, and outlast is none of them",
            f"#SBATCH --signal=B:USR1@{asked.seconds}; {_FORM}",
        )
    elif not executed:
        yield failure(
            "warning",
            f"{name}: the warning goes to the shell of the batch script, which dies of it, and all with it",
            f"write: exec outlast run …; {_FORM}",
        )
    elif asked.name == "TERM" and asked.seconds + FAR > warn:  # it may come that much earlier
        yield failure(
            "warning",
            f"{name}: it warns with SIGTERM, so early taken for a cancel: the job would not be queued again",
            f"#SBATCH --signal=B:USR1@{asked.seconds}; or slurm: {{warn: {asked.seconds + FAR:.0f}s}} in the job file",
        )
    elif asked.name != "USR1":
        yield warning(
            "warning",
            f"{name}: it warns with SIG{asked.name}, which may mean a cancel",
            f"#SBATCH --signal=B:USR1@{asked.seconds}",
        )
    else:
        yield ok("warning", f"{name}: SIGUSR1 comes to outlast itself")
    if asked is not None and executed and signal.SIGUSR1 not in own.ignored and asked.name == "USR1":
        yield warning(
            "warning",
            "a warning in the first moments, while Python starts, would end outlast with nothing said",
            f"write this before the exec: trap '' USR1; {_FORM}",
        )


def _in_time(found: Slurm, past: Past) -> Iterator[Line]:
    asked = asked_in(found.script) if found.script and found.where in ("batch", "line") else None
    if asked is not None and "B" in asked.to:
        cure = "raise slurm.warn in the job file, and submit it again"
        yield enough("lead", "Slurm's warning before the end", asked.seconds, past, cure)


def _again(found: Slurm, job: Job) -> Iterator[Line]:
    policy = job.slurm.requeue if job.slurm else "auto"
    if policy == "never":
        yield ok("requeue", "the job file says requeue: never; after a stop somebody has to submit it again")
        return
    wanted = {"auto": ("scontrol", "sbatch"), "slurm": ("scontrol",), "resubmit": ("sbatch",)}[policy]
    there = [tool for tool in wanted if tool in found.tools]
    if not there:
        yield failure(
            "requeue",
            f"{' and '.join(wanted)} not in PATH: outlast cannot have the job queued again",
            "put Slurm's tools in PATH; or have the site list 75 in RequeueExit",
        )
    elif isinstance(found.said, slurm.Unanswered):
        yield undecided(
            "requeue", f"the controller does not say: {found.said.why}", "try again when Slurm answers"
        )
    elif not found.said.batch:
        yield warning("requeue", "an interactive job is never queued again", _FORM)
    elif found.requeue is False and "sbatch" not in there:
        yield failure("requeue", "Slurm does not let this job be queued again", "#SBATCH --requeue")
    elif found.requeue is False:
        yield warning(
            "requeue",
            "Slurm does not let this job be queued again; it will be submitted anew",
            "#SBATCH --requeue",
        )
    else:
        yield ok("requeue", f"by {' or '.join(there)}")


def _log(found: Slurm) -> Iterator[Line]:
    """Whether a requeue, which keeps the job's id and so the name of its output, keeps what is in it."""
    asked = _option(found.script, "open-mode") if found.script else ""
    if asked.startswith("a") or (not asked and found.appends):
        yield ok("log", "the job's output is appended to")
    elif found.script is not None:
        yield warning(
            "log",
            "each start of the job empties its output, unless sbatch itself was told otherwise; "
            "outlast's own logs, in the run, are appended",
            "#SBATCH --open-mode=append",
        )


def _why(found: Slurm) -> str:
    return found.said.why if isinstance(found.said, slurm.Unanswered) else "scontrol did not give it"


# -- asking --------------------------------------------------------------------------------------------------


def look(own: Own) -> Slurm:
    """Ask Slurm's tools, each with its own time."""
    env = slurm.query_env(own.env)
    place = slurm.place(own.env, was_submitted_by_worker(own.env))
    told = _tool(slurm.job_query(place.job), env)
    flag = re.search(r"\bRequeue=(\d)", told.out)
    script = _tool(slurm.script_query(place.job), env)
    site = re.search(
        r"^JobFileAppend\s*=\s*(\d)", _tool(("scontrol", "show", "config"), env).out, re.MULTILINE
    )
    path = own.env.get("PATH")
    return Slurm(
        place=place,
        said=slurm.read_job(told),
        requeue=flag[1] != "0" if flag else None,
        script=script.out if script.ok and script.out.startswith("#!") else None,
        tools=frozenset(t for t in ("scontrol", "sbatch", "squeue") if shutil.which(t, path=path)),
        appends=site[1] != "0" if site else None,
        where=_where(own),
    )


def _where(own: Own) -> str:
    task, step = own.env.get("SLURM_TASK_PID", ""), own.env.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < 1 << 31:
        return "step"
    if not task.isdecimal():
        return "elsewhere"
    return {own.pid: "batch", own.parent: "line"}.get(int(task), "elsewhere")


def _tool(words: tuple[str, ...], env: Mapping[str, str]) -> Outcome:
    try:
        done = subprocess.run(
            words, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
        )
    except FileNotFoundError:
        return Outcome("missing", err=f"{words[0]} is not in PATH")
    except OSError as error:
        return Outcome("missing", err=f"{words[0]} cannot be executed: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Outcome("late", err=f"{words[0]} did not answer within {PATIENCE:g} s")
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return Outcome(
        "ok" if done.returncode == 0 else "failed",
        out.strip(),
        err.strip() or f"it exited with {done.returncode}",
    )
