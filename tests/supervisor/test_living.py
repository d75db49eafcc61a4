"""Whether a run of another host is supervised, as far as its lease tells, on hosts whose clocks differ."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from outlast_jobs.lease import Holder, Lease
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor import living
from outlast_supervisor.living import is_supervised

HOURS = 5 * 3600.0


@pytest.mark.parametrize("ahead", [-HOURS, 0.0, HOURS])
def test_who_asks_goes_by_the_clock_that_dates_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """A living run can be asked, and a dead one not, from a host whose clock is hours off; nothing is left by that."""
    run = RunDirectory(tmp_path)
    run.create()
    elsewhere = msgspec.structs.replace(
        Holder.current(), host="elsewhere", process="4242:17:11111111-2222-3333-4444-555555555555"
    )
    run.lock.write_bytes(msgspec.json.encode(elsewhere) + b"\n")
    assert isinstance(Lease.acquire(run.path, elsewhere), Lease)
    before = sorted(tmp_path.iterdir())
    real = time.time
    monkeypatch.setattr(living.time, "time", lambda: real() + ahead)
    assert is_supervised(run, None, may_write=True)
    (lease,) = tmp_path.glob("lease-*")
    os.utime(lease, (real() - 3600, real() - 3600))
    assert not is_supervised(run, None, may_write=True)
    assert sorted(tmp_path.iterdir()) == before
