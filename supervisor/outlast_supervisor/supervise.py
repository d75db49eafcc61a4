"""Carry one job to its end: take the run, read what it was, supervise it, say how it ended."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.ending import Kind
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import GenerationName
from outlast_jobs.history import History, read_history
from outlast_jobs.history_model import Held as Hold
from outlast_jobs.identity import is_blind
from outlast_jobs.jobfile import Job
from outlast_jobs.locks import Busy, Held, RunLock, read_holder
from outlast_jobs.pacing import VANISHED
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.verify import scan

from . import early, namesake
from .answering import answering
from .helper import NoThread, bounded
from .notify import NoSocket
from .options import RunOptions
from .schedulers.around import is_in_slurm
from .sdnotify import ServiceManager
from .session import Session
from .startup import Overtaken, begin_anew, digests_of

RELEASE_WAIT = 3.0  # seconds
# what a quiet start is silent about: it is as it should be, or was told when it came to be so
_KNOWN = (ExitCode.BUSY, ExitCode.DONE, ExitCode.HELD)
IN_VAIN = 3  # attempts in a row that were ended before they had saved anything: more is no chance
_OUTWAIT = 1.0  # seconds between two looks at a lock that somebody is waited for
_MOMENT = 5.0  # seconds for whoever has the lock without a name: a pin, a hold


class Refused(Exception):
    """The run is not started; ``code`` is the exit code and the text says why and what to do."""

    def __init__(self, code: int, text: str, other: str = "") -> None:
        """``other`` is the other job whose run this is: that is a mistake, and said by quiet starts as well."""
        super().__init__(f"{text}; {namesake.owner(other)}" if other else text)
        self.code, self.known = code, code in _KNOWN and not other


def supervise(options: RunOptions) -> int:
    """Run a job until it is done or cannot be done; returns the exit code of ``outlast run``."""
    try:
        return _supervise(options)
    except Refused as refused:
        if refused.code == ExitCode.DONE:  # or systemd takes it for a start that failed, and tries it again
            ServiceManager(os.environ).status("already complete")
        if not (options.quiet and refused.known):
            print(f"outlast: {refused}", file=sys.stderr)
            if many := refused.code in _KNOWN and namesake.of_tasks(os.environ, options.job.run_dir):
                print(f"outlast: {many}", file=sys.stderr)
        return refused.code
    except (NoSocket, NoThread) as error:
        print(f"outlast: {error.strerror}", file=sys.stderr)
        return ExitCode.CANNOT_WRITE
    except OSError as error:
        if str(error.filename).startswith("/proc/") and not is_blind(error):
            text = f'cannot look at "{error.filename}": {error.strerror}; outlast needs /proc: mount it'
            print(f"outlast: {text}", file=sys.stderr)
            return ExitCode.CANNOT_WRITE
        where = f' "{error.filename}"' if error.filename else ""
        print(
            f"outlast: cannot write the run directory{where}: {error.strerror or error}; {_cure(error)}",
            file=sys.stderr,
        )
        return ExitCode.CANNOT_WRITE
    except IntegrityError as error:
        print(f"outlast: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE


def _cure(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n), or close what holds them"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter path with --run-dir"
    return "make room or give access, or choose another with --run-dir"


def _supervise(options: RunOptions) -> int:
    with contextlib.ExitStack() as beginning:
        beginning.enter_context(answering(f'"{options.job.run_dir}"'))
        return _begin(options, beginning.close)


def _begin(options: RunOptions, begun: Callable[[], None]) -> int:
    """Up to the loop everything may wait for the run directory; ``begun`` is called when that is over."""
    job = options.job
    preflight(job)
    run = RunDirectory(Path(job.run_dir))
    _refuse_from(run, job, options.from_generation)
    if not options.fresh:
        _refuse_unmounted(run)
    lock = _take(run, options)
    try:
        former = None
        if options.fresh:
            _refuse_fresh(job)
            try:
                run, lock, former = begin_anew(run, lock)
            except Overtaken as overtaken:
                raise Refused(ExitCode.BUSY, str(overtaken)) from None
        known = read_history(run) if run.journal.is_dir() else History()
        digests = digests_of(job)
        other, warning = _compare(run, job, known, digests)
        _refuse_done(run, known, digests, other)
        released = _refuse_held(known, digests, options, other)
        if warning and (other or not options.quiet):
            print(f"outlast: warning: {warning}", file=sys.stderr)
        if not options.quiet and job.signals.mode == "outlast" and (vain := _in_vain(run, known)):
            print(f"outlast: warning: {vain}", file=sys.stderr)
        if released and known.held is not None:
            if not options.quiet:
                print(f"outlast: {_held(known.held)}; it goes on: {released}", file=sys.stderr)
            known = known.released()
        created = run.create()
        for damage in () if options.quiet else known.damage:
            print(
                f"outlast: warning: the journal has damage, which is passed over: {damage}", file=sys.stderr
            )
        session = Session(options, run, created.run.run_id, lock, known, digests, former, new=created.new)
        begun()
        return session.run(_opening(created.note or warning, released))
    finally:
        bounded(lock.release, RELEASE_WAIT)  # on a dead disk the kernel does it, when we are gone


def _refuse_from(run: RunDirectory, job: Job, name: str | None) -> None:
    """A slip in the name of a generation must not leave a run that looks as if none of its own could be used."""
    if name and not any(os.path.lexists(Path(place, name)) for place in (run.checkpoints, ".", job.workdir)):
        raise Refused(
            ExitCode.USAGE,
            f'--from "{name}": there is no such generation, here or in "{run.checkpoints}"; '
            "outlast verify shows those of the run",
        )


def _refuse_unmounted(run: RunDirectory) -> None:
    """A start at boot may come before the disk that has the run; below its mount point it would begin at step 0."""
    from .unmounted import without_its_disk

    why, cure = without_its_disk(run)
    if why:
        raise Refused(ExitCode.SAVED, f"{why}: {cure}")


def _refuse_fresh(job: Job) -> None:
    """What a script keeps outside the run is not moved with it: a new run would go on from there, unasked."""
    if job.adopt is None:
        return
    from outlast_jobs.adopted import candidates

    found = candidates(job.adopt.pattern, job.workdir)
    if found:
        raise Refused(
            ExitCode.USAGE,
            f'--fresh begins anew, and "{found[0].path}" still matches "adopt"; move the script\'s checkpoints away, '
            "or have a copy of the job write elsewhere",
        )


def _compare(run: RunDirectory, job: Job, known: History, digests: dict[str, str]) -> tuple[str, str]:
    """The other job that this run is of, where there is one, and what is to be said of a change."""
    changed = known.command_digest not in (None, digests["command_digest"])
    if job.source is None and not changed:
        return "", ""
    former = namesake.former_job(run, None if changed else job)
    other = namesake.namesake(former, job)
    return other, namesake.warning(former if changed else None, job, other)


def _in_vain(run: RunDirectory, known: History) -> str:
    """What is to be said where nothing came of several attempts, since each was ended from outside too early."""
    try:  # what lies there counts: the last save of a worker whose supervisor was killed is in no journal
        names = [GenerationName.parse(path.name) for path in scan(run.checkpoints)]
    except OSError:
        return ""
    saved = max((name.attempt for name in names if name), default=0)
    last = itertools.takewhile(
        lambda attempt: attempt.number > saved and attempt.outcome in (Kind.SAVED, VANISHED),
        reversed(known.attempts),
    )
    if (count := sum(1 for _ in last)) < IN_VAIN:
        return ""
    return (
        f"the last {count} attempts brought no new generation, the newest: {known.attempts[-1].reason}; a start, some "
        "steps and a save have to fit into the time that each has"
    )


def preflight(job: Job) -> None:
    """Find before the first attempt what would make every attempt fail."""
    for text in (job.run_dir, job.workdir, *job.command):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused(
                ExitCode.USAGE,
                f"cannot run {text!r} of job {job.name!r}: a path or argument must be valid UTF-8, "
                "since what is recorded of a run is; rename it",
            ) from None
    if not Path(job.workdir).is_dir():
        raise Refused(ExitCode.USAGE, f'workdir "{job.workdir}" of job "{job.name}" is not a folder')
    path = job.env.get("PATH", os.environ.get("PATH", os.defpath))
    program = job.command[0]
    if "/" in program:
        problem = _unfit(Path(job.workdir, program))
    else:
        problem = "" if _in_path(program, path) else "it is not in PATH"
    if problem:
        raise Refused(ExitCode.USAGE, f'cannot execute "{program}" of job "{job.name}": {problem}')
    interpreter = Path(program).name.startswith("python")
    if interpreter and len(job.command) > 1 and job.command[1].endswith(".py"):
        script = Path(job.workdir, job.command[1])
        if not script.is_file():
            raise Refused(ExitCode.USAGE, f'the script "{script}" of job "{job.name}" does not exist')


def _take(run: RunDirectory, options: RunOptions) -> RunLock:
    lock = RunLock(run)
    taken = lock.acquire()
    until = time.monotonic() + _MOMENT
    while taken == Busy(str(run.path), None) and time.monotonic() < until:
        taken = lock.acquire()  # which waits for a name
    if isinstance(taken, Busy) and taken.free_in is not None:
        # the lease of a host that died is free after a while, and a requeued job must not end before that
        if not options.quiet:
            print(f"outlast: {taken.text}; waiting {taken.free_in:.0f} s for it", file=sys.stderr)
        if not early.wait(taken.free_in + 1.0):
            raise Refused(ExitCode.SAVED, f"{taken.text}; told to end before it was free: run me again")
        taken = lock.acquire()
    if isinstance(taken, Busy) and not options.takeover and _was_queued_again():
        taken = _outwait(lock, taken, options)
    if isinstance(taken, Busy) and options.takeover:
        _end_holder(run, taken, options.job.stop.grace)
        taken = lock.acquire()
    if isinstance(taken, Busy):
        raise Refused(
            ExitCode.BUSY,
            f"{taken.text}; follow it with: outlast status, or end it with --takeover",
            namesake.namesake(namesake.former_job(run, options.job), options.job),
        )
    return lock


def _was_queued_again() -> bool:
    """Whether this is what Slurm started, and not for the first time."""
    if not is_in_slurm(os.environ):
        return False
    from .processes import was_submitted_by_worker
    from .schedulers.slurm import place

    here = place(os.environ, was_submitted_by_worker(os.environ))
    return here.restarts > 0 and not here.by_hand


def _unfit(program: Path) -> str:
    """Why a file cannot be executed, as far as can be told without trying; or empty."""
    if not program.is_file():
        return f'there is no file "{program}"'
    cure = "chmod +x it, or put the program that runs it in front"
    return "" if os.access(program, os.X_OK) else f"it is not executable; {cure}"


def _in_path(program: str, path: str) -> str | None:
    """The first file of this name in the folders of PATH that may be executed."""
    for folder in path.split(os.pathsep):
        found = os.path.join(folder, program)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None


def _outwait(lock: RunLock, busy: Busy, options: RunOptions) -> Held:
    """Wait for the job's earlier copy, which goes on where Slurm has lost a node and queued the job again.

    It ends when the node comes back. Ending here instead would leave nobody to go on then: the job would have failed.
    """
    if not options.quiet:
        print(f"outlast: {busy.text}; this job was queued again, and waits for its end", file=sys.stderr)
    while isinstance(taken := lock.acquire(), Busy):
        if not early.wait(_OUTWAIT):
            raise Refused(ExitCode.SAVED, f"{taken.text}; told to end before it was free: run me again")
    return taken


def _end_holder(run: RunDirectory, busy: Busy, grace: float) -> None:
    """End a living supervisor of this host: TERM, so that it saves, then KILL."""
    from .processes import send

    holder = busy.holder or read_holder(run)
    if holder is None or not holder.alive():
        raise Refused(ExitCode.BUSY, f"{busy.text}; it is not of this host, so it cannot be ended from here")
    print(f"outlast: taking over from process {holder.identity.pid}: it saves first", file=sys.stderr)
    for number, patience in ((signal.SIGTERM, grace + 10.0), (signal.SIGKILL, 10.0)):
        if not send(holder.identity, number):
            return
        until = time.monotonic() + patience
        while holder.identity.alive() and time.monotonic() < until:
            if not early.wait(0.05):
                raise Refused(ExitCode.SAVED, f"{busy.text}; told to end while taking over: run me again")
        if not holder.identity.alive():
            return


def _refuse_done(run: RunDirectory, known: History, digests: dict[str, str], other: str) -> None:
    if known.done is not None and known.done.command_digest == digests["command_digest"]:
        run.sweep()  # what its last supervisor could not delete, nobody else would
        raise Refused(
            ExitCode.DONE, "already complete; begin anew with --fresh, or change the command to go on", other
        )


def _refuse_held(known: History, digests: dict[str, str], options: RunOptions, other: str) -> str:
    """Why a held run may start after all, or empty where it is not held."""
    if known.held is None:
        return ""
    if options.release:
        return "released with --release"
    for key, what in (("job_digest", "the job file"), ("code_digest", "the code")):
        then = getattr(known.held, key, None)
        if then and then != digests[key] and not other:
            return f"{what} changed"
    raise Refused(
        ExitCode.HELD,
        f"{_held(known.held)}; go on with --release (under a scheduler: outlast release), or change the job file or "
        "its code",
        other,
    )


def _held(held: Hold) -> str:
    return f"held by {held.by}: {held.reason}"


def _opening(note: str | None, released: str) -> list[tuple[str, dict[str, Any]]]:
    """What this life has to record before it begins."""
    records: list[tuple[str, dict[str, Any]]] = []
    if released:
        records.append((journal.RELEASED, {"by": "outlast run", "why": released}))
    if note:
        records.append((journal.JOB_CHANGED, {"changes": [note]}))
    return records
