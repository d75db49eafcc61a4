"""`outlast status`: a line a run, with what would be lost now in front; never takes a lock to look."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import views
from outlast_supervisor.answering import answering
from outlast_supervisor.living import supervisor_alive
from outlast_supervisor.logview import attempt_logs
from outlast_supervisor.targets import NoSuchRun, find_runs, is_kept

from . import loading
from .ends import our_errors, print_json

_REDRAW = 1.0  # seconds between two looks under --watch


@our_errors()
def show(*, runs: tuple[str, ...], watch: bool, details: bool | None, quiet: bool, as_json: bool) -> None:
    """Print how runs are doing, again and again under ``watch``; raises Failed where there are none."""
    loading.done()
    with answering(", ".join(f'"{name}"' for name in runs or (".",))):
        _look(runs, watch, details, quiet, as_json)


def _look(runs: tuple[str, ...], watch: bool, details: bool | None, quiet: bool, as_json: bool) -> None:
    folders = [folder for folder in runs or (".",) if is_kept(Path(folder))]
    try:
        found = find_runs(runs)
    except NoSuchRun:
        if not folders:
            raise
        found = []
    detailed = len(found) == 1 if details is None else details
    last: object = None
    while True:
        snapshots = [(run, run.read_status()) for run in found]
        waiting = [] if quiet or as_json else _waiting(folders)
        if (snapshots, waiting) != last or not watch:
            _show(snapshots, detailed, quiet, as_json, again=last is not None)
            if waiting:
                print("\n".join(waiting), flush=True)
        if not watch:
            return
        last = (snapshots, waiting)
        try:
            time.sleep(_REDRAW)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # the ^C of a terminal stands in a line of its own
            return


def _waiting(folders: Sequence[str]) -> list[str]:
    """The jobs of daemons' folders that do not run; most people have no daemon."""
    if not folders:
        return []
    from outlast_supervisor.daemon.roster import folder_books, roster

    books = [found for folder in folders if (found := folder_books(folder)) is not None]
    return [line for found in books for line in roster(found)]


def _show(
    snapshots: Sequence[tuple[RunDirectory, dict[str, Any] | None]],
    detailed: bool,
    quiet: bool,
    as_json: bool,
    *,
    again: bool,
) -> None:
    if as_json:
        print_json([_plain(run, found) for run, found in snapshots], indent=not again)
        return
    rows = [views.row(str(run.path), found, _facts(run, found)) for run, found in snapshots]
    if quiet:
        rows = [row for row in rows if row.level == "bad"]
    if not rows:
        return
    if sys.stdout.isatty():
        from outlast_supervisor import tables

        tables.show(rows, detailed=detailed, clear=again)
    else:
        print("\n".join(views.plain(rows, detailed=detailed)), flush=True)


def _facts(run: RunDirectory, found: dict[str, Any] | None) -> views.Facts:
    facts = views.Facts(time.time(), supervisor_alive(run, found), _log_bytes(run), proof=_proof(run))
    return facts if found is not None else _from_journal(run, facts)


def _from_journal(run: RunDirectory, facts: views.Facts) -> views.Facts:
    from outlast_supervisor.ledger import history_of

    try:
        history = history_of(run)
    except (OSError, ValueError):
        return facts
    held = history.held.reason if history.held else None
    return msgspec.structs.replace(
        facts, held=held, done=history.done is not None, attempts=len(history.attempts)
    )


def _proof(run: RunDirectory) -> tuple[str, ...]:
    """What is to be said of the run's proof; most runs have none."""
    if not run.proof.is_dir():
        return ()
    from outlast_supervisor.prove.stale import proof_notes

    return tuple(proof_notes(run))


def _log_bytes(run: RunDirectory) -> int:
    """What the logs take on disk; the freed middle of a long one takes nothing."""
    total = 0
    for path in attempt_logs(run.logs).values():
        with contextlib.suppress(OSError):
            total += os.stat(path).st_blocks * 512
    return total


def _plain(run: RunDirectory, found: dict[str, Any] | None) -> dict[str, Any]:
    facts = _facts(run, found)
    row = views.row(str(run.path), found, facts)
    return {
        "run": str(run.path),
        "supervisor_alive": facts.supervisor_alive,
        "silent": views.silent(found, facts) if found else "",
        "notes": list(row.notes),
        "log_bytes": facts.log_bytes,
        "status": found,
    }
