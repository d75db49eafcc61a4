"""What the helpers do in the run directory: verify, prune, set aside, examine, compare, trim."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from outlast_jobs import durable, metrics, retention, verify
from outlast_jobs import events as journal
from outlast_jobs.beneath import open_beneath, require_folder
from outlast_jobs.claim import newest_claim
from outlast_jobs.errors import NotRegular
from outlast_jobs.failure import signature_from_log
from outlast_jobs.generation import INDEX, GenerationName
from outlast_jobs.jobfile import Job
from outlast_jobs.memory import oom_kills
from outlast_jobs.requests import remove_request
from outlast_jobs.rundir import RunDirectory

from . import events as ev
from . import linked, linux

if TYPE_CHECKING:
    from outlast_jobs.adopted import Whole

TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024
_BLOCK = 4096

Record = Callable[[str, dict[str, Any]], None]


class Desk(Struct):
    """What the helpers work with. ``record`` returns when the record is on disk: it precedes every change."""

    run: RunDirectory
    run_id: str
    record: Record
    remembered: dict[str, verify.FileStats] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    # what retention needs of a generation that was looked at, and the stat of its index by then
    looked: dict[str, tuple[list[int], retention.Gen]] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)  # found corrupt; never chosen, even where renaming fails
    adopted: Whole = field(default_factory=dict)  # checkpoints of a script that were found whole
    claimed: int = 0  # the attempt that this supervisor claimed the checkpoints for
    claiming: int = 0  # the highest attempt that it tried to claim them for, done or not
    lock_named: Callable[[], bool | None] = lambda: True  # False where another lock has the place of ours
    oom_kills: int | None = field(default_factory=oom_kills)  # those that are known


def taken_over(desk: Desk) -> str:
    """How another supervisor shows that it has the run, empty where none does.

    Locks alone do not tell: they do not reach a node that the network has lost, and a person can remove them.
    """
    newest = newest_claim(desk.run.checkpoints) if desk.claiming else 0
    if newest > desk.claiming:
        return f"another supervisor has taken this run: attempt {newest} is none of ours"
    if desk.lock_named() is False:
        return "another supervisor has taken this run: the lock was replaced"
    return ""


def verified(desk: Desk, name: str, stop: Callable[[], bool]) -> ev.Event | None:
    """Read a sealed generation back from disk. None where it is gone or could not be looked at."""
    path = desk.run.checkpoints / name
    finding = verify.look(path, desk.run_id, full=True, drop_cache=True, stop=stop)
    if finding.verdict is verify.Verdict.VERIFIED:
        healthy = finding.index is not None and finding.index.healthy
        remember(desk, finding)
        return ev.Verified(name, healthy)
    if finding.verdict is verify.Verdict.UNREADABLE or not path.exists():
        return None  # says nothing about it; it is looked at again before it is used
    return ev.Rejected(name, f"{finding.verdict}: {finding.reason}")


def remember(desk: Desk, finding: verify.Finding) -> None:
    """A generation was read in full: it is not read again while its files are untouched, nor others for these."""
    for found in (finding, *linked.with_it(desk.remembered, finding, desk.run_id)):
        healthy = found.index is not None and found.index.healthy
        desk.remembered[found.path.name] = found.stats
        record = {"generation": found.path.name, "stats": found.stats, "healthy": healthy}
        desk.record(journal.VERIFIED, record)


def set_aside(desk: Desk, name: str, reason: str, verdict: str = "corrupt") -> None:
    """Rename a generation out of the way, its reason in the journal first."""
    desk.bad.add(name)
    path = desk.run.checkpoints / name
    if GenerationName.parse(name) is None or not os.path.lexists(path):
        return
    desk.record(journal.QUARANTINED, {"generation": name, "verdict": verdict, "reason": reason})
    linked.doubt(desk.remembered, path)
    require_folder(desk.run.checkpoints)
    verify.quarantine(path, reason)
    desk.remembered.pop(name, None)


def prune(desk: Desk, job: Job, resumed_from: str | None) -> list[str]:
    """Apply the retention policy; returns what was dropped. Only who has the run deletes."""
    if taken_over(desk):
        return []
    require_folder(desk.run.checkpoints)
    durable.empty_trash(desk.run.checkpoints)  # what a deletion could not remove would keep its room
    gens: list[retention.Gen] = []
    complete = True
    found, healthy_one = 0, False  # of those that were looked at now, and are whole
    paths = verify.scan(desk.run.checkpoints)
    if len(paths) <= job.keep.last and job.keep.max_bytes is None:
        return []  # the policy keeps as many without asking what they are
    for path in paths:
        if found >= job.keep.last and healthy_one and (known := _looked_before(desk, path)) is not None:
            gens.append(known)
            continue
        finding = verify.look(path, desk.run_id, full=False, remembered=desk.remembered.get(path.name))
        if finding.verdict is verify.Verdict.UNREADABLE:
            complete = False
        if finding.name is None or finding.verdict is not verify.Verdict.VERIFIED:
            continue
        healthy = finding.index is not None and finding.index.healthy
        gens.append(retention.Gen(finding.name, finding.full, healthy, finding.bytes))
        if finding.full:
            found, healthy_one = found + 1, healthy_one or healthy
            desk.looked[path.name] = (list(finding.stats[INDEX]), gens[-1])
    plan = retention.plan(gens, job.keep, desk.pinned, resumed_from, complete)
    sharing = linked.sharing(desk.remembered, desk.run.checkpoints, [name for name, _ in plan.drop])
    for name, reason in plan.drop:
        desk.record(journal.DROPPED, {"generation": name, "reason": reason})
        durable.discard(desk.run.checkpoints / name, desk.run.checkpoints)
        desk.remembered.pop(name, None)
        desk.looked.pop(name, None)
    error = durable.empty_trash(desk.run.checkpoints) if plan.drop else None
    for name, stats in linked.same_as_before(desk.remembered, desk.run.checkpoints, sharing):
        healthy = any(str(gen.name) == name and gen.healthy for gen in gens)
        desk.remembered[name] = stats
        desk.record(journal.VERIFIED, {"generation": name, "stats": stats, "healthy": healthy})
    if error is not None:
        raise error
    return [name for name, _ in plan.drop]


def _looked_before(desk: Desk, path: Path) -> retention.Gen | None:
    """What is known of an older generation whose index nobody has touched since it was looked at.

    To look at each of thousands at each save would take seconds. Those that a resume could need, the newest, are
    looked at each time.
    """
    stat, gen = desk.looked.get(path.name, (None, None))
    if stat is None or path.name not in desk.remembered:
        return None
    try:
        found = os.stat(f"{path}/{INDEX}", follow_symlinks=False)
    except OSError:
        return None
    return gen if [found.st_ino, found.st_ctime_ns, found.st_size] == stat else None


def examine(desk: Desk, attempt: int, job: Job | None = None) -> ev.Examined:
    """Read what an attempt left. What cannot be read is as if it were not there."""
    sealed: list[GenerationName] = []
    final = False
    with contextlib.suppress(OSError):
        for path in verify.scan(desk.run.checkpoints):
            name = GenerationName.parse(path.name)
            if name is None or name.attempt != attempt:
                break  # the newest attempt comes first
            sealed.append(name)
        if sealed:
            newest = desk.run.checkpoints / str(sealed[0])
            finding = verify.look(newest, desk.run_id, full=False)
            final = finding.index is not None and finding.index.final
    tail = log_tail(desk.run.attempt_log(attempt))
    before, desk.oom_kills = desk.oom_kills, oom_kills()
    adopted = found.step if (found := wrote(desk, job)) is not None else None
    return ev.Examined(
        sealed_step=max((name.step for name in sealed), default=adopted),
        final=final,
        last_step=max(last_step(desk.run.attempt_metrics(attempt)), adopted or 0),
        failure=signature_from_log(tail),
        tail="\n".join(tail.splitlines()[-TAIL_LINES:]),
        oom_kills=0 if before is None or desk.oom_kills is None else max(0, desk.oom_kills - before),
    )


def wrote(desk: Desk, job: Job | None) -> ev.Wrote | None:
    """The furthest checkpoint of a script without the library: it is progress, as a generation is."""
    if job is None or job.adopt is None:
        return None
    from outlast_jobs.adopted import furthest

    found = furthest(job.adopt.pattern, job.workdir, job.adopt.complete, desk.adopted)
    if found is None:
        return None
    return ev.Wrote(found.name, found.step, time.time() - found.written, found.numbered)


def look(desk: Desk, attempt: int) -> ev.Looked:
    """Read how far a running attempt is. What cannot be read is as if it were not there."""
    now = time.time()
    step, written = next(_last_lines(desk.run.attempt_metrics(attempt)), (0, None))
    age = now - written if written is not None else None
    sealed, sealed_age = None, None
    with contextlib.suppress(OSError):
        path = next(iter(verify.scan(desk.run.checkpoints)), None)
        name = GenerationName.parse(path.name) if path is not None else None
        if path is not None and name is not None and name.attempt == attempt:
            index = verify.look(path, desk.run_id, full=False).index
            if index is not None:
                sealed = ev.Sealed(path.name, name.step, index.total_bytes, index.save_seconds)
                sealed_age = now - index.saved_at
    return ev.Looked(step, age, sealed, sealed_age)


def last_step(path: Path) -> int:
    """The step of the last whole line of a metrics file, 0 where there is none; reads the end alone."""
    return next((step for step, _ in _last_lines(path)), 0)


def _last_lines(path: Path) -> Iterator[tuple[int, float | None]]:
    """Step and time of the last lines of a metrics file, newest first."""
    for line in reversed(_end_of(path).split(b"\n")[:-1]):  # what follows the last line end is torn
        with contextlib.suppress(ValueError, RecursionError):
            found = msgspec.json.decode(line)
            if isinstance(found, dict) and type(step := found.get("step")) is int and step >= 0:
                written = found.get("t")
                yield step, written if isinstance(written, float) else None


def furthest_step(desk: Desk, before: int) -> int:
    """The furthest step that the newest attempt before this one with any metrics reported."""
    for attempt in reversed([number for number in metrics.attempts(desk.run) if number < before]):
        found = last_step(desk.run.attempt_metrics(attempt))
        if found:
            return found
    return 0


def log_tail(path: Path) -> str:
    """The end of a log, at most 64 KiB of it."""
    return _end_of(path).decode(errors="replace")


def _end_of(path: Path) -> bytes:
    """The last 64 KiB of a file; nothing where it cannot be read."""
    try:
        # not a pipe, which would hold us up, nor a link to what is not the run's
        fd = durable.open_regular(path)
    except (OSError, NotRegular):
        return b""
    try:
        return os.pread(fd, _TAIL_BYTES, max(0, os.fstat(fd).st_size - _TAIL_BYTES))
    except OSError:
        return b""
    finally:
        os.close(fd)


def audit(desk: Desk, attempt: int) -> ev.Audited | None:
    """Compare the steps that this attempt trained again with those of the run before it."""
    earlier = metrics.replayed(desk.run, attempt)
    if not earlier:
        return None
    newer = metrics.read_metrics(desk.run.attempt_metrics(attempt)).lines
    found = metrics.compare_replay(earlier.values(), newer)
    if not found.compared:
        return None
    return ev.Audited(found.text, found.compared, found.equal)


def trim_log(path: Path, max_bytes: int) -> None:
    """Free the middle of a log that is too long; its first block, its end and its length stay."""
    with contextlib.suppress(OSError):
        fd = open_beneath(path.parent.parent, path, os.O_RDWR)
        try:
            found = os.fstat(fd)
            if found.st_blocks * 512 <= max_bytes:
                return
            start = _BLOCK
            end = (found.st_size - max_bytes // 2) // _BLOCK * _BLOCK
            if end > start:
                linux.punch_hole(fd, start, end - start)
        finally:
            os.close(fd)


def answer(desk: Desk, request: str, ok: bool, text: str) -> None:
    """Answer a request in the journal, then take it away."""
    desk.record(journal.ANSWERED, {"id": request, "ok": ok, "text": text})
    with contextlib.suppress(OSError, ValueError):
        remove_request(desk.run, request)
