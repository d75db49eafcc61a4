"""Properties of the lease: who is silent for a minute or seen to be dead is passed by one other."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.jobs.leases import elsewhere, make_old, snapshot

from outlast_jobs import lease as lease_module
from outlast_jobs import locks
from outlast_jobs.filesystem import Filesystem
from outlast_jobs.identity import ProcessIdentity, boot_id
from outlast_jobs.lease import STALE, Holder, Lease, LeaseBusy, read_lease
from outlast_jobs.locks import Busy, Held, RunLock
from outlast_jobs.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.path.mkdir()
    return made


def test_a_lease_stays_with_a_living_holder_however_silent(tmp_path: Path) -> None:
    """A holder that is seen to live on this host is not robbed, though its heartbeat is an hour old."""
    held = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(held, Lease)
    make_old(tmp_path, 3600)
    busy = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(busy, LeaseBusy)
    assert busy.free_in is None
    held.release()


@pytest.mark.parametrize(("age", "free"), [(0, False), (STALE - 5, False), (STALE + 5, True), (-3600, False)])
def test_a_silent_host_is_dead_after_a_minute(tmp_path: Path, age: float, free: bool) -> None:
    """The age of the last heartbeat decides, by the file system's own clock where the two differ."""
    held = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(held, Lease)
    make_old(tmp_path, age)
    before = snapshot(tmp_path)
    taken = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(taken, Lease) is free
    if free:
        assert held.renew() is False
    else:
        assert snapshot(tmp_path) == before


def test_another_clock_than_the_file_servers_frees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose clock is an hour ahead or behind neither robs a fresh lease nor waits for a stale one."""
    held = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(held, Lease)
    real = time.time
    for skew in (3600.0, -3600.0):
        monkeypatch.setattr(lease_module.time, "time", lambda skew=skew: real() + skew)
        assert isinstance(Lease.acquire(tmp_path, Holder.current()), LeaseBusy)
    monkeypatch.undo()
    make_old(tmp_path, STALE + 1)
    monkeypatch.setattr(lease_module.time, "time", lambda: real() - 3600.0)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), Lease)


def test_a_dead_holder_of_this_boot_is_passed_at_once(tmp_path: Path) -> None:
    """A fresh lease of a process that is dead here, or whose pid another has now, is free."""
    own = ProcessIdentity.current()
    for start in (own.start - 1, own.start + 1):
        dead = msgspec.structs.replace(Holder.current(), process=f"{own.pid}:{start}:{boot_id()}")
        held = Lease.acquire(tmp_path, dead)
        assert isinstance(held, Lease)
        held.close()
    other_container = msgspec.structs.replace(dead, namespace="pid:[1]")
    held = Lease.acquire(tmp_path, other_container)
    assert isinstance(held, Lease)
    busy = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(busy, LeaseBusy)  # its pids are not ours to judge


def test_renewal_is_a_heartbeat_and_changes_no_content(tmp_path: Path) -> None:
    """Renewing moves the file's time and nothing else."""
    held = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(held, Lease)
    content = (tmp_path / "lease-000001").read_bytes()
    make_old(tmp_path, 20)
    before = time.time()
    assert held.renew()
    assert (tmp_path / "lease-000001").read_bytes() == content
    seen = read_lease(tmp_path)
    assert seen is not None
    assert seen[1] > before - 1  # the kernel stamps files by a coarser clock
    held.release()
    assert read_lease(tmp_path) is None


def test_a_heartbeat_counts_once_the_file_server_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is gone there means that the lease is lost; another error is told, and says nothing of it."""
    held = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(held, Lease)
    code = errno.EIO

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            held.renew()
        code = errno.ESTALE
        assert held.renew() is False
    assert held.renew()


def test_who_wakes_after_a_long_silence_races_for_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that slept takes the next number like everybody: it keeps the lease or learns of its loss."""
    now = 1000.0
    monkeypatch.setattr(lease_module, "_now", lambda: now)
    held = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(held, Lease)
    monkeypatch.setattr(lease_module, "_now", lambda: now + 45)
    assert held.renew()
    assert os.listdir(tmp_path) == ["lease-000002"]
    make_old(tmp_path, STALE + 1)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), Lease)
    monkeypatch.setattr(lease_module, "_now", lambda: now + 120)
    assert held.renew() is False
    assert os.listdir(tmp_path) == ["lease-000003"]
    assert held.renew() is False


def test_a_racer_from_long_ago_yields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that saw no lease, and makes its number after others came and went, does not win."""
    first = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(first, Lease)
    make_old(tmp_path, STALE + 1)
    second = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(second, Lease)
    real = lease_module._look
    looks: list[None] = [None]
    monkeypatch.setattr(lease_module, "_look", lambda folder: looks.pop() if looks else real(folder))
    assert isinstance(Lease.acquire(tmp_path, elsewhere(Holder.current())), LeaseBusy)
    assert os.listdir(tmp_path) == ["lease-000002"]
    assert second.renew()


def test_a_file_system_without_links_has_leases_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without link() the number is made exclusively; a half-written one counts as busy until stale."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    held = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(held, Lease)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), LeaseBusy)
    held.release()
    (tmp_path / "lease-000002").write_bytes(b'{"sche')
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), LeaseBusy)
    make_old(tmp_path, STALE + 1)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), Lease)
    assert os.listdir(tmp_path) == ["lease-000003"]


def test_a_link_that_was_made_but_reported_as_failed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retransmitted link call says EEXIST for our own success: the file is looked at before giving up."""
    real = os.link

    def twice(source: Path, target: Path, **more: bool) -> None:
        real(source, target, **more)
        real(source, target, **more)

    monkeypatch.setattr(os, "link", twice)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), Lease)


def test_a_heartbeat_that_stands_still_is_stale_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a server's clock was set back a year a dead host's run is free once it was watched for a minute."""
    now = 1000.0  # a whole number: of others a difference may be less than it was meant to be
    monkeypatch.setattr(lease_module, "_now", lambda: now)
    held = Lease.acquire(tmp_path, elsewhere(Holder.current()))
    assert isinstance(held, Lease)
    held.close()
    year = 365 * 86_400.0
    make_old(tmp_path, -year)
    first = Lease.acquire(tmp_path, Holder.current())
    assert isinstance(first, LeaseBusy)
    monkeypatch.setattr(lease_module, "_now", lambda: now + STALE - 1)
    early = Lease.acquire(tmp_path, Holder.current(), first)
    assert isinstance(early, LeaseBusy)
    monkeypatch.setattr(lease_module, "_now", lambda: now + STALE)
    assert isinstance(Lease.acquire(tmp_path, Holder.current()), LeaseBusy), "nobody has watched it"
    make_old(tmp_path, -year + 10)
    beaten = Lease.acquire(tmp_path, Holder.current(), early)
    assert isinstance(beaten, LeaseBusy), "it was heard meanwhile"
    monkeypatch.setattr(lease_module, "_now", lambda: now + 2 * STALE)
    assert isinstance(Lease.acquire(tmp_path, Holder.current(), beaten), Lease)


def test_who_waited_out_a_lease_from_the_future_has_the_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead host's heartbeat that lies a day ahead keeps a start waiting for a minute, and not for the day."""
    monkeypatch.setattr(locks, "filesystem_kind", lambda path: Filesystem("nfs4", path, True, False))
    other = Lease.acquire(run.path, elsewhere(Holder.current()))
    assert isinstance(other, Lease)
    make_old(run.path, -86_400.0)
    lock = RunLock(run)
    busy = lock.acquire()
    assert isinstance(busy, Busy)
    assert busy.free_in is not None
    later = lease_module._now() + busy.free_in
    monkeypatch.setattr(lease_module, "_now", lambda: later)
    assert isinstance(lock.acquire(), Held)
    assert other.renew() is False
    lock.release()


HOLDS_A_LEASE = """
import sys
from pathlib import Path
from outlast_jobs import locks
from outlast_jobs.filesystem import Filesystem
from outlast_jobs.rundir import RunDirectory
locks.filesystem_kind = lambda path: Filesystem("nfs4", path, True, False)
lock = locks.RunLock(RunDirectory(Path(sys.argv[1])))
print(type(lock.acquire()).__name__, flush=True)
input()
"""


def test_the_lease_in_a_copy_is_nobodys(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where leases exclude a copy is free while its original is held, and the original is not."""
    monkeypatch.setattr(locks, "filesystem_kind", lambda path: Filesystem("nfs4", path, True, False))
    words = [sys.executable, "-c", HOLDS_A_LEASE, str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"Held\n"
        shutil.copytree(run.path, tmp_path / "copy")
        copy = RunLock(RunDirectory(tmp_path / "copy"))
        assert isinstance(copy.acquire(), Held)
        busy = Lease.acquire(run.path, Holder.current())
        assert isinstance(busy, LeaseBusy)
        assert busy.free_in is None, "it is seen to live"
        copy.release()
        holder.communicate(b"\n")
