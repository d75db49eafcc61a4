"""`outlast verify`: read every checkpoint against its index or digest; changes nothing unless told to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from outlast_jobs import events
from outlast_jobs.contract import Answer
from outlast_jobs.errors import IntegrityError
from outlast_jobs.generation import INDEX, GenerationName
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.sidecar import CHECKPOINT, look_file, scan_files
from outlast_jobs.units import format_size
from outlast_jobs.verify import Finding, Verdict, look, quarantine, scan, set_aside
from outlast_supervisor.commands.shared import (
    CHECK_CODES,
    Failed,
    json_option,
    print_json,
    quiet_option,
    tells_waits,
    usage_errors,
)
from outlast_supervisor.targets import find_runs, is_run

_BAD = (Verdict.CORRUPT, Verdict.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class _Folder:
    """Generations to look at, and the run to which they have to belong, where that is known."""

    run: RunDirectory | None
    run_id: str | None
    generations: list[Path]
    all: bool = False  # and what the run's script writes without the library


@click.command(epilog=CHECK_CODES)
@click.argument("dirs", nargs=-1, metavar="[DIR]...")
@click.option("--quarantine", "aside", is_flag=True, help="Rename corrupt and incomplete ones.")
@click.option("--quick", is_flag=True, help="Names and lengths only, no digests.")
@quiet_option
@json_option
@usage_errors
@tells_waits
def verify(dirs: tuple[str, ...], aside: bool, quick: bool, quiet: bool, as_json: bool) -> int:
    """Check every checkpoint against its index or digest and say which are bad and why.

    DIR is a run, a folder of generations or of single-file checkpoints, or one of these; by default the runs
    at hand.
    """
    findings: list[Finding] = []
    before: list[str] = []
    for folder in _folders(dirs):
        found = []
        before += [path.name for path in set_aside(folder.run.checkpoints)] if folder.run else []
        for finding in _look(folder, full=not quick):
            found.append(finding)
            if not as_json and not (quiet and finding.verdict is Verdict.VERIFIED):
                _tell(finding, full=not quick)
        findings += found
        # what a script wrote without the library is its own
        bad = [f for f in found if f.verdict in _BAD and f.path in folder.generations]
        if aside and bad:
            _set_aside(folder, bad, quiet)
    if as_json:
        print_json([_plain(finding) for finding in findings])
    elif not findings:
        told = f"; set aside before: {', '.join(before)}" if before else ""
        print(f"outlast: no generation found{told}", file=sys.stderr)
    return _answer(findings)


def _answer(findings: list[Finding]) -> Answer:
    verdicts = {finding.verdict for finding in findings}
    if verdicts == {Verdict.VERIFIED}:
        return Answer.HELD
    return (
        Answer.UNDECIDED
        if verdicts <= {Verdict.VERIFIED, Verdict.UNREADABLE} and verdicts
        else Answer.DID_NOT_HOLD
    )


def _folders(dirs: tuple[str, ...]) -> Iterator[_Folder]:
    for name in dirs or (None,):
        path = Path(name) if name is not None else None
        if path is not None and path.name.endswith(CHECKPOINT) and not path.is_dir():
            yield _Folder(None, None, [path])
            continue
        if path is not None and path.is_dir() and not is_run(path):
            if GenerationName.parse(path.name) or (path / INDEX).exists():
                yield _folder(path.absolute().parent, [path])
                continue
            if checkpoints := [*scan(path), *scan_files(path)]:
                yield _folder(path.absolute(), checkpoints)
                continue
        for run in find_runs([] if name is None else [name]):
            yield _of_run(run)


def _folder(checkpoints: Path, generations: list[Path]) -> _Folder:
    """Generations in a run belong to it; elsewhere any run's are taken."""
    run = RunDirectory(checkpoints.parent)
    if checkpoints.name == run.checkpoints.name and is_run(run.path):
        return _Folder(run, _run_id(run), generations)
    return _Folder(None, None, generations)


def _of_run(run: RunDirectory) -> _Folder:
    return _Folder(run, _run_id(run), scan(run.checkpoints) if run.checkpoints.is_dir() else [], all=True)


def _run_id(run: RunDirectory) -> str | None:
    try:
        return run.read_run().run_id
    except (IntegrityError, OSError) as error:
        print(
            f"outlast: cannot tell which run this is, so any run's generations count: {error}",
            file=sys.stderr,
        )
        return None


def _look(folder: _Folder, *, full: bool) -> Iterator[Finding]:
    show = sys.stderr.isatty()
    for path in folder.generations:
        if show:
            print(f"\r\x1b[2Kreading {path.name} …", end="", file=sys.stderr, flush=True)
        single = path.name.endswith(CHECKPOINT)
        finding = look_file(path, full=full) if single else look(path, folder.run_id, full=full)
        if show:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        yield finding
    if folder.all and folder.run is not None:
        yield from _adopted(folder.run)


def _adopted(run: RunDirectory) -> Iterator[Finding]:
    """The checkpoints that the run's script writes without the library."""
    from outlast_jobs.adopted import look_through
    from outlast_supervisor.namesake import former_job

    job = former_job(run)
    if job is None or job.adopt is None:
        return
    for candidate, wrong in look_through(job.adopt.pattern, job.workdir, job.adopt.complete):
        verdict, reason = Verdict.VERIFIED, "as far as its formats tell"
        if wrong is not None:
            verdict = Verdict.INCOMPLETE if wrong.begun else Verdict.CORRUPT
            verdict, reason = Verdict.UNREADABLE if wrong.unread else verdict, wrong.reason
        yield Finding(candidate.path, None, verdict, reason)


def _tell(finding: Finding, *, full: bool) -> None:
    index = finding.index
    good = finding.verdict is Verdict.VERIFIED
    words = [format_size(finding.bytes)] if good and finding.bytes else []
    if good and index is not None:
        words += [text for text, said in (("final", index.final), ("not healthy", not index.healthy)) if said]
    if good and not full:
        words.append("lengths only")
    if finding.reason:
        words.append(finding.reason)
    print(f"{finding.verdict.value:<10}  {finding.path.name}  {', '.join(words)}".rstrip(), flush=True)


def _plain(finding: Finding) -> dict[str, Any]:
    index = finding.index
    return {
        "generation": finding.path.name,
        "path": str(finding.path),
        "verdict": finding.verdict.value,
        "reason": finding.reason,
        "step": finding.step,
        "attempt": finding.attempt,
        "bytes": finding.bytes,
        "healthy": index.healthy if index else None,
        "final": index.final if index else None,
        "state_sha256": index.state_sha256 if index else None,
    }


def _set_aside(folder: _Folder, bad: list[Finding], quiet: bool) -> None:
    """Only who holds the run's lock may rename; each is looked at again under it."""
    from outlast_supervisor.ledger import held_lock, record

    if folder.run is None:
        raise Failed("only the generations of a run can be set aside; name the run directory")
    with held_lock(folder.run) as busy:
        if busy is not None:
            raise Failed(f"{busy.text}; it sets bad generations aside by itself", 1)
        again = [look(finding.path, folder.run_id, full=True) for finding in bad]
        still = [finding for finding in again if finding.verdict in _BAD]
        # Journaled first: a renamed generation whose reason nobody knows is what must not be.
        record(folder.run, *((events.QUARANTINED, _reason(finding)) for finding in still))
        for finding in still:
            target = quarantine(finding.path, finding.reason)
            if not quiet:
                print(f"set aside   {finding.path.name} as {target.name}", flush=True)


def _reason(finding: Finding) -> dict[str, str]:
    return {"generation": finding.path.name, "verdict": finding.verdict.value, "reason": finding.reason}
