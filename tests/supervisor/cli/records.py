"""What a supervisor writes, for tests that have none."""

from __future__ import annotations

import time
from typing import Any

from outlast_jobs.identity import hostname
from outlast_jobs.journal import JournalWriter
from outlast_jobs.rundir import RunDirectory


def status_of(run: RunDirectory, **changes: Any) -> None:
    """Write a snapshot as a supervisor does."""
    base: dict[str, Any] = {
        "as_of": time.time(),
        "name": "tiny",
        "host": hostname(),
        "state": "running",
        "step": 7,
    }
    run.write_status({**base, **changes})


def journal(run: RunDirectory, *records: tuple[str, dict[str, Any]]) -> None:
    """Record events as a supervisor does."""
    writer = JournalWriter.open(run)
    writer.write([writer.append(event, data) for event, data in records])
    writer.close()
