"""A drill for people and for programs: a table, lines, and JSON. Pure, but for the function that prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from outlast_jobs import __version__
from outlast_jobs.contract import Schema

from .drilling import Drill
from .model import Row

HEAD = ("attack", "what happened", "work lost", "verdict")
_NAMED = 5  # attacks that did not fit, by name; all are in the JSON
_COLOURS = {"held": "green", "did not hold": "bold red", "undecided": "yellow", "not tried": "dim"}


def as_json(drill: Drill) -> dict[str, Any]:
    """All of it, in plain values."""
    options = drill.options
    return {
        "schema": Schema.DRILL,
        "job": options.job.name,
        "verdict": drill.word,
        "exit_code": int(drill.answer),
        "reason": drill.reason,
        "began": drill.began,
        "seconds": round(drill.seconds, 3),
        "minutes": options.minutes,
        "seed": options.seed,
        "steps": options.steps,
        "every_steps": options.cadence,
        "attacks": [_row(row) for row in drill.rows],
        "did_not_fit": list(drill.left),
        "notes": list(drill.notes),
        "kept": str(drill.kept) if drill.kept is not None else None,
        "outlast": __version__,
    }


def cells(row: Row) -> tuple[str, str, str, str]:
    """A row of the table."""
    said = row.reason if row.verdict != "held" and row.reason else row.what
    return row.attack, said, row.lost or "-", row.verdict


def plain(rows: Sequence[Row]) -> Iterator[str]:
    """The table as lines without colours; what happened comes last, where it may be as long as it is."""
    widths = [max(len(word), *(len(cells(row)[n]) for row in rows), 0) for n, word in enumerate(HEAD)]
    for attack, said, lost, verdict in (HEAD, *map(cells, rows)):
        yield f"{attack:{widths[0]}}  {verdict:{widths[3]}}  {lost:{widths[2]}}  {said}"


def after_table(drill: Drill) -> list[str]:
    """What follows the table: notes, what did not fit, where the rest lies, and the verdict last."""
    told = [f"note: {note}" for note in drill.notes]
    if drill.left:
        more = f" and {len(drill.left) - _NAMED} more" if len(drill.left) > _NAMED else ""
        names = f"{', '.join(drill.left[:_NAMED])}{more}"
        told.append(f"did not fit into {drill.options.minutes:g} minutes: {names}")
    if drill.kept is not None:
        told.append(f'the scratch runs: "{drill.kept}"')
    told.append(f"seed: {drill.options.seed}")
    told.append(f"{drill.options.job.name}: {drill.word}: {drill.reason}")
    return told


def show(drill: Drill) -> None:
    """Print it on stdout: a table with colours on a terminal, lines elsewhere."""
    if drill.rows and sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*HEAD)
        for row in drill.rows:
            attack, said, lost, verdict = cells(row)
            table.add_row(Text(attack), Text(said), Text(lost), Text(verdict, style=_COLOURS[verdict]))
        Console().print(table)
    elif drill.rows:
        print("\n".join(plain(drill.rows)))
    print("\n".join(after_table(drill)))


def _row(row: Row) -> dict[str, Any]:
    return {
        **asdict(row),
        "seconds": round(row.seconds, 3),
        "checks": [asdict(check) for check in row.checks],
    }
