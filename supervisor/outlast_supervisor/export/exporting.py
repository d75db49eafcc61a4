"""Export one generation: choose it, copy it beside its place, load the copy, and only then give it its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast_jobs.errors import IntegrityError, Unreadable
from outlast_jobs.generation import Index
from outlast_jobs.look import Finding
from outlast_jobs.rundir import RunDirectory
from outlast_jobs.units import format_size
from outlast_supervisor.answering import answering
from outlast_supervisor.quick.ends import Failed

from . import papers, place
from .checking import Python, checked
from .choosing import UNUSABLE, Candidates, PassedOver, named
from .copying import copy_generation


class Voice(Struct, frozen=True):
    """What an export says meanwhile: to a person, of a generation that it did not take, and what it is doing."""

    tell: place.Tell
    passed_over: PassedOver
    doing: Callable[[str], None]


class Exported(Struct, frozen=True):
    """What was exported, and what loading it showed."""

    path: Path
    generation: str
    index: Index
    found: dict[str, Any]


def export(
    run: RunDirectory,
    target: Path,
    pythons: Iterator[Python],
    *,
    generation: str | None,
    voice: Voice,
) -> Exported:
    """Export to ``target``; Failed with nothing there where that cannot be."""
    run_id = _run_id(run, voice.tell)
    healthy = Candidates(run, run_id, voice.passed_over)
    candidates = iter(healthy) if generation is None else iter([named(run, run_id, generation)])
    with answering(f'"{run.path}"'):
        first = next(candidates)  # where there is none, nothing is made at the target
    try:
        with place.beside(target, voice.tell) as temporary:
            reject = healthy.reject if generation is None else _refuse
            name, index = _copied(itertools.chain([first], candidates), reject, temporary, target, voice)
            if not index.healthy:
                voice.tell(f"{name} is not healthy; it is exported because it was named")
            papers.write_load(temporary)
            if missing := papers.write_job(temporary, run):
                voice.tell(f"exported without its job.yaml: {missing}")
            voice.doing(f"loading {name} twice")
            found = checked(temporary, name, index, pythons, voice.tell)
            papers.write_readme(temporary, run, name, index, found)
            place.publish(temporary, target)
    except OSError as error:
        raise place.cannot_write(target, error) from error
    return Exported(target, name, index, found)


def _copied(
    candidates: Iterable[Finding],
    reject: Callable[[Finding, str], None],
    temporary: Path,
    target: Path,
    voice: Voice,
) -> tuple[str, Index]:
    """Copy the first that is whole to its last byte. The candidates end in Failed, and so may ``reject``."""
    for finding in candidates:
        name, index = finding.path.name, finding.index
        if index is None:
            continue
        place.require_room(target, index.total_bytes)
        voice.doing(f"copying {name}, {format_size(index.total_bytes)}")
        try:
            copy_generation(finding.path, index, temporary / name)
            return name, index
        except (IntegrityError, Unreadable) as error:
            why = str(error.strerror) if isinstance(error, Unreadable) else f"corrupt: {error}"
            reject(finding, why)
            place.remove(temporary / name)
    raise Failed("no generation was found", UNUSABLE)


def _refuse(finding: Finding, why: str) -> None:
    raise Failed(f"{finding.path.name} cannot be exported: {why}", UNUSABLE)


def _run_id(run: RunDirectory, tell: place.Tell) -> str | None:
    try:
        return run.read_run().run_id
    except (IntegrityError, OSError) as error:
        tell(f"cannot tell which run this is, so any run's generations count: {error}")
        return None
