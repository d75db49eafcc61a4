"""What a scratch run is like now, read from its disk and its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast_jobs import events
from outlast_jobs.look import Verdict, look
from outlast_jobs.metrics import attempts, compare_replay, read_metrics
from outlast_jobs.verify import scan

from .census import Census
from .model import Seen
from .supervised import ScratchRun

Lines = Mapping[int, Mapping[str, Any]]
_FIELDS = ("epoch", "batch")


def observe(scratch: ScratchRun, census: Census, reference: Lines) -> Seen:
    """All that a verdict asks for. ``reference`` has the lines of the uninterrupted run."""
    run = scratch.run
    # Before the journal is read: what is pruned is noted first and deleted then, so what is gone here is noted there.
    there = generations(scratch)
    records = scratch.records()
    data: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        data.setdefault(record.event, []).append(record.data)
    steps: dict[int, int] = {}
    restored: dict[int, int] = {}
    first: dict[int, int] = {}
    difference, compared, known = "", 0, set[int]()
    for attempt in attempts(run):
        metrics = read_metrics(run.attempt_metrics(attempt))
        if metrics.header is not None:
            restored[attempt] = metrics.header.restored_step
        if metrics.lines:
            first[attempt], steps[attempt] = metrics.lines[0]["step"], metrics.lines[-1]["step"]
        trained = {line["step"] for line in metrics.lines}
        compared += len(trained & known)
        known |= trained
        if reference and not difference:
            difference = differs(reference, {line["step"]: line for line in metrics.lines})
    newest = max((int(d["attempt"]) for d in data.get(events.ATTEMPT_STARTED, [])), default=0)
    gone = [*data.get(events.GAVE_UP, []), *data.get(events.HELD, [])]
    return Seen(
        attempt=newest,
        steps=steps,
        restored=restored,
        first=first,
        generations=there,
        sealed=tuple(str(d["generation"]) for d in data.get(events.SEALED, [])),
        dropped=frozenset(str(d["generation"]) for d in data.get(events.DROPPED, [])),
        aside=frozenset(str(d["generation"]) for d in data.get(events.QUARANTINED, [])),
        unprotected=len(data.get(events.UNPROTECTED, [])),
        protected=len(data.get(events.PROTECTED, [])),
        hung=len(data.get(events.HUNG, [])),
        gave_up=str(gone[-1].get("reason", "")) if gone else "",
        difference=difference,
        compared=compared,
        leftovers=census.described(census.before(newest)),
        twice=tuple(census.together(scratch.trainers())),
    )


def differs(reference: Lines, lines: Lines) -> str:
    """The first step that is not as in the reference, in words; empty where all are.

    Random streams that the reference never drew from are passed over: where nobody seeds one, it stands
    elsewhere in each run.
    """
    idle = idle_streams(reference)
    found = compare_replay(
        [_without(line, idle) for line in reference.values()],
        [_without(line, idle) for line in lines.values()],
    ).first
    if found is not None:
        return str(found)
    for step, line in lines.items():
        old = reference.get(step, line)
        off = [name for name in _FIELDS if old.get(name) != line.get(name)]
        if off:
            return f"step {step}: {off[0]} is {line.get(off[0])}, was {old.get(off[0])}"
    return ""


def idle_streams(lines: Lines) -> frozenset[str]:
    """Random streams that stand at the same place after all of these steps."""
    places = [line["rng"] for line in lines.values() if isinstance(line.get("rng"), dict)]
    names = set().union(*places) if len(places) > 1 else set()
    return frozenset(name for name in names if len({str(p.get(name)) for p in places}) == 1)


def _without(line: Mapping[str, Any], streams: frozenset[str]) -> dict[str, Any]:
    rng = line.get("rng")
    if not isinstance(rng, dict):
        return dict(line)
    return {**line, "rng": {name: place for name, place in rng.items() if name not in streams}}


def generations(scratch: ScratchRun) -> dict[str, str]:
    """Every final name, with what is wrong there. One that is pruned while it is read is left out."""
    found: dict[str, str] = {}
    if not scratch.run.checkpoints.is_dir():
        return found
    for path in scan(scratch.run.checkpoints):
        finding = look(path, None, full=True)
        if finding.verdict is Verdict.VERIFIED:
            found[path.name] = ""
        elif path.exists():
            found[path.name] = f"{finding.verdict}: {finding.reason}"
    return found
