"""The run as it is now: would it start, who has it, what would be lost if it were killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from outlast_jobs import adopted
from outlast_jobs.history import History
from outlast_jobs.jobfile import Job
from outlast_jobs.jobfile_model import Adopt
from outlast_jobs.pacing import automatic, cost_of_a_save
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.units import format_duration
from outlast_jobs.verify import Verdict, look, scan, set_aside

from .. import living, views
from ..progress import number
from ..startup import digests_of
from ..unmounted import without_its_disk
from .line import Line, failure, ok, undecided, warning
from .past import Past

MOST = 5  # generations that are looked at, newest first


class State(Struct, frozen=True):
    """What is known without a lock."""

    known: History
    digests: Mapping[str, str]
    status: Mapping[str, Any] | None
    supervised: bool
    holder: str  # in words, where it is supervised
    generations: tuple[str, ...] = ()  # verdicts of the newest, by names and lengths alone
    aside: int = 0  # generations that were found bad before
    trouble: str = ""  # why the run could not be read
    unmounted: tuple[str, str] = ("", "")  # why it cannot be looked for yet, and the cure


def read(run: RunDirectory, job: Job, known: History) -> State:
    """Look at the run; OSError where it cannot be read."""
    from outlast_jobs.locks import read_holder

    status = run.read_status()
    holder = read_holder(run)
    who = f"process {holder.identity.pid} on {holder.host}" if holder else "somebody"
    paths = scan(run.checkpoints)[:MOST] if run.checkpoints.is_dir() else []
    run_id = run.read_run().run_id if paths else None
    found = tuple(str(look(path, run_id, full=False).verdict) for path in paths)
    supervised, unmounted = living.is_supervised(run, status), without_its_disk(run)
    aside = len(set_aside(run.checkpoints)) if run.checkpoints.is_dir() else 0
    return State(known, digests_of(job), status, supervised, who, found, aside, unmounted=unmounted)


def start(state: State, job: Job) -> Iterator[Line]:
    """What `outlast run` would do with it."""
    if state.trouble:
        yield undecided("run", state.trouble, "look with: outlast status")
        return
    unmounted, cure = state.unmounted
    if unmounted:
        yield failure("run", f"{unmounted}; a start ends at once with 75", cure)
        return
    known, digests = state.known, state.digests
    done, held = known.done, known.held
    if state.supervised:
        yield warning(
            "run",
            f"{state.holder} supervises it already; another start ends with 69 and changes nothing",
            "follow it with: outlast logs -f",
        )
    elif done is not None and done.command_digest == digests["command_digest"]:
        yield warning(
            "run", "it is complete: a start ends at once with 0", "begin anew with: outlast run JOB --fresh"
        )
    elif held is not None and not _lifted(state):
        yield failure(
            "run",
            f"held by {held.by}: {held.reason}; a start ends at once with 70",
            "go on with: outlast run JOB --release, or change the job file or its code",
        )
    elif job.adopt is not None:
        yield _adopted(job.adopt, job.workdir)
    elif state.generations and Verdict.VERIFIED not in state.generations:
        bad = ", ".join(sorted(set(state.generations)))
        yield failure(
            "run",
            f"of the {len(state.generations)} newest generations none can be used ({bad})",
            "see: outlast verify",
        )
    elif state.generations:
        yield ok("run", f"it goes on, attempt {known.highest_attempt + 1}")
    elif state.aside:
        yield failure(
            "run",
            f"all {state.aside} generations were found bad and set aside; a start ends with 65, and not at step 0",
            "name one with: outlast run JOB --from GENERATION, or begin anew with --fresh",
        )
    else:
        yield ok("run", "it starts at step 0")
    for damage in known.damage:
        yield warning("run", f"the journal has damage, which is passed over: {damage}")


def _adopted(adopt: Adopt, workdir: str) -> Line:
    """Where a script goes on that saves by itself."""
    damaged = ""
    looked = adopted.look_through(adopt.pattern, workdir, adopt.complete)
    for candidate, found in itertools.islice(looked, MOST):
        if found is None:
            return ok("run", f"it goes on from {candidate.name}")
        if not found.begun:
            damaged = damaged or f"{candidate.name}: {found.reason}"
    if damaged:
        cure = "repair or remove what is bad, or name one with: outlast run JOB --from GENERATION"
        return failure("run", f"of the newest that match {adopt.pattern!r} none can be used: {damaged}", cure)
    return ok("run", f"it starts at step 0: nothing whole matches {adopt.pattern!r} yet")


def _lifted(state: State) -> bool:
    held = state.known.held
    keys = ("job_digest", "code_digest")
    return any((then := getattr(held, key)) and then != state.digests[key] for key in keys)


def cost(state: State, job: Job, past: Past) -> Iterator[Line]:
    """What a kill without a word would cost."""
    status = state.status
    if status is not None and state.supervised and not views.ended(status):
        steps, seconds = number(status.get("steps_at_risk")), number(status.get("seconds_at_risk"))
        at_risk = f"{steps or 0:.0f} steps" + (f", {format_duration(round(seconds))}" if seconds else "")
        yield ok("kill", f"a kill now would cost {at_risk}")
    if job.adopt is not None:
        yield ok("kill", "a kill costs what was trained since the script's own newest whole checkpoint")
        return
    every = _cadence(job, past)
    if every is None:
        yield ok("kill", f"a kill costs at most {job.save.every_steps} steps")
        return
    told = f"at most {format_duration(round(every, 1))} of work" + (
        f" or {job.save.every_steps} steps" if job.save.every_steps and not job.save.auto else ""
    )
    if past.up is not None and every > past.up:
        yield warning(
            "kill",
            f"a kill costs {told}, and attempts have lived {format_duration(round(past.up, 1))} on average",
            "save more often (save.every_seconds, or every: auto): as it is the run gets nowhere",
        )
    else:
        yield ok("kill", f"a kill costs {told}")
    spent = cost_of_a_save(past.paced)
    # an automatic cadence weighs that against what is lost
    if spent is not None and every < 10 * spent and not job.save.auto:
        yield warning(
            "kill",
            f"each save costs the training {spent:.2g} s, and one comes every {format_duration(round(every, 1))}",
            "save more seldom: over a tenth of the time goes into saving",
        )


def _cadence(job: Job, past: Past) -> float | None:
    """The most seconds between two saves, None where only steps count and how long they take is not known."""
    if job.save.auto:
        return automatic(past.paced, job.save.between).seconds
    found = [job.save.every_seconds] if job.save.every_seconds is not None else []
    if job.save.every_steps is not None and past.step is not None:
        found.append(job.save.every_steps * past.step)
    return min(found, default=None)
