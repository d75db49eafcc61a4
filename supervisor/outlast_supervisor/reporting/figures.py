"""A report's figures as plain values, for programs."""

from __future__ import annotations

from typing import Any

from outlast_supervisor.reporting.gather import Gathered


def figures(found: Gathered) -> dict[str, Any]:
    """What the page says in numbers. Times are unix seconds, durations seconds."""
    goodput = found.goodput
    return {
        "run": found.path,
        "name": found.name,
        "as_of": found.now,
        "state": found.row.cells[2],
        "began": goodput.began or None,
        "until": goodput.until or None,
        "goodput": goodput.share,
        "goodput_of_up": goodput.share_of_up,
        "seconds": goodput.seconds,
        "steps": {"kept": goodput.kept, "lost": goodput.lost},
        "attempts": [
            {
                "attempt": one.attempt.number,
                "host": one.attempt.host,
                "started": one.begins,
                "ended": None if one.runs else one.ends,
                "outcome": one.attempt.outcome,
                "restored": one.attempt.restored,
                "seconds": {name: until - since for name, since, until in one.parts},
                "first_step": one.trained.first if one.trained else None,
                "last_step": one.trained.last if one.trained else None,
                "kept": one.trained.kept if one.trained else 0,
                "lost": one.trained.steps - one.trained.kept if one.trained else 0,
            }
            for one in found.attempts
        ],
        "damage": list(found.history.damage),
    }
