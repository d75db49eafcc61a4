"""Who supervises a run, as far as can be seen without taking its lock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from outlast_jobs.identity import ProcessIdentity, hostname, is_this_boot
from outlast_jobs.leftovers import clock_of
from outlast_jobs.locks import lease_heard, read_holder
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.views import SILENT, ended


def supervisor_alive(run: RunDirectory, status: Mapping[str, Any] | None) -> bool | None:
    """Whether the supervisor that last had the run still lives; None where only another host could tell."""
    holder = read_holder(run)
    if holder is not None:
        return holder.has(run.path)
    if status is None or status.get("host") != hostname():
        return None
    try:
        process = ProcessIdentity.parse(str(status.get("supervisor")))
    except ValueError:
        return None
    # Hosts may share a name, as containers and cloned images do; then another boot says nothing of life.
    return process.alive() if is_this_boot(process.boot) else None


def is_supervised(run: RunDirectory, status: Mapping[str, Any] | None, *, may_write: bool = False) -> bool:
    """Whether somebody is there to answer a request; on another host a fresh sign of life says so.

    Who ``may_write`` there goes by the clock of the file system, which dates the lease, and not by this host's.
    """
    alive = supervisor_alive(run, status)
    if alive is not None:
        return alive
    now = time.time()
    heard = lease_heard(run)
    if heard is not None and (clock_of(run.path) if may_write else now) - heard <= SILENT:
        return True
    if status is None or ended(status):
        return False
    as_of = status.get("as_of")
    return isinstance(as_of, (int, float)) and now - as_of <= SILENT
