"""Read what a report tells of a run: its journal and its metrics, each line once and none of them kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from outlast_jobs import metrics
from outlast_jobs.history import History, read_history
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import views
from outlast_supervisor.living import is_supervised, supervisor_alive
from outlast_supervisor.progress import number
from outlast_supervisor.reporting.curve import Curve
from outlast_supervisor.reporting.goodput import Goodput, Stretch, Trained, account, stood_still, stretches

_BRANCHES = 200  # curves of steps that do not count; the newest are kept


class Gathered(Struct, frozen=True):
    """Everything that is on the page, as values."""

    path: str
    name: str
    now: float
    status: Mapping[str, Any]
    row: views.Row
    history: History
    attempts: tuple[Stretch, ...]
    goodput: Goodput
    loss: Curve
    lost: Mapping[int, Curve]
    """What was trained and does not count, by attempt."""
    resumed: tuple[int, ...]
    """The steps from which attempts went on."""


def gather(run: RunDirectory, now: float | None = None) -> Gathered:
    """Read all of it. What can't be read is missing; what of the journal could not be is named in its history."""
    now = time.time() if now is None else now
    status = run.read_status()
    history = read_history(run, running=is_supervised(run, status))
    loss, lost, trained = _curves(run, {one.number: one.pauses for one in history.attempts})
    attempts = stretches(history.attempts, trained, now)
    facts = views.Facts(
        now,
        supervisor_alive(run, status),
        held=history.held.reason if history.held else None,
        done=history.done is not None,
        attempts=len(history.attempts),
    )
    found = status or {}
    return Gathered(
        path=str(run.path),
        name=str(found.get("name") or run.path.name),
        now=now,
        status=found,
        row=views.row(str(run.path), status, facts),
        history=history,
        attempts=attempts,
        goodput=account(attempts),
        loss=loss,
        lost=lost,
        resumed=tuple(sorted({one.trained.first for one in attempts if one.trained}))[1:],
    )


def _curves(
    run: RunDirectory, pauses: Mapping[int, Iterable[tuple[float, float]]]
) -> tuple[Curve, dict[int, Curve], dict[int, Trained]]:
    """The loss that counts, the losses that do not, and what each attempt trained."""
    counts = dict(metrics.lineage(run))
    loss, lost, trained = Curve(), {}, {}
    for attempt in metrics.attempts(run):
        last = counts.get(attempt, 0)  # None: all of it counts
        branch = Curve()
        found: Trained | None = None
        still = deque(sorted(pauses.get(attempt, ())))
        for line in metrics.steps(run.attempt_metrics(attempt)):
            step, value = line["step"], metrics.loss_of(line)
            counted = last is None or step <= last
            if value is not None:
                (loss if counted else branch).add(step, value)
            found = _count(found, step, number(line.get("t")), counted, still)
        if found is not None:
            trained[attempt] = found
        if any(True for _ in branch):
            lost[attempt] = branch
            while len(lost) > _BRANCHES:
                del lost[min(lost)]
    return loss, lost, trained


def _count(
    found: Trained | None, step: int, at: float | None, counted: bool, pauses: deque[tuple[float, float]]
) -> Trained:
    """One step more. Times only go on: one that lies before another is taken for it."""
    if found is None:
        begun = at or 0.0
        return Trained(step, step, begun, int(counted), begun if counted else None, 1)
    until = max(found.until, at or 0.0)
    kept_until = until if counted else found.kept_until
    stood = stood_still(pauses, found.until, until)
    stood = found.stood + (stood if counted else 0.0)
    return Trained(found.first, step, until, found.kept + counted, kept_until, found.steps + 1, stood)
