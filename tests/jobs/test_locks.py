"""Properties of exclusion: of any number that start at once one runs; the kernel or a heartbeat frees it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.jobs.leases import elsewhere, make_old, snapshot

from outlast_jobs import locks
from outlast_jobs.filesystem import Filesystem
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.lease import STALE, Holder, Lease
from outlast_jobs.locks import Busy, Held, RunLock, hold_shared, is_busy, lease_heard, read_holder
from outlast_jobs.rundir import RunDirectory

# Reads "take FOLDER MONOTONIC-TIME", starts at that very time, and says what came of it; "drop" releases.
_RACER = """
import errno, fcntl, sys, time
from pathlib import Path
real = fcntl.flock
def broken(fd, how):
    raise OSError(errno.ENOLCK, "No locks available")
if "ENOLCK" in sys.argv: fcntl.flock = broken
if "granted" in sys.argv: fcntl.flock = lambda fd, how: None
from outlast_jobs.locks import Held, RunLock
from outlast_jobs.rundir import RunDirectory
print("ready", flush=True)
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == "take":
        lock = RunLock(RunDirectory(Path(rest[0])))
        while time.monotonic() < float(rest[1]): pass
        got = lock.acquire()
        print("held" if isinstance(got, Held) else "busy", lock.exclusion, flush=True)
    elif verb == "drop":
        lock.release()
        print("dropped", flush=True)
"""


@dataclass
class Racer:
    process: subprocess.Popen[str]

    def tell(self, line: str) -> None:
        if self.process.stdin is None:
            raise RuntimeError("no stdin")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        if self.process.stdout is None:
            raise RuntimeError("no stdout")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the racer ended with {self.process.wait()}")
        return line.strip()


@contextmanager
def racers(count: int, *words: str, prefix: tuple[str, ...] = ()) -> Iterator[list[Racer]]:
    """So many processes that take locks on command."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            process = subprocess.Popen(
                [*prefix, sys.executable, "-c", _RACER, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append(Racer(process))
        for racer in found:
            assert racer.hear() == "ready"
        yield found


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that inherits every descriptor it can, and does nothing."""
    process = subprocess.Popen(["sleep", "1000"], close_fds=False)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def race(found: list[Racer], folder: Path) -> list[str]:
    start = time.monotonic() + 0.02
    for racer in found:
        racer.tell(f"take {folder} {start}")
    return [racer.hear() for racer in found]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.path.mkdir()
    return made


def _refuse_flock(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    def refused(_fd: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)


# -- the run's lock


def test_of_two_that_start_within_a_millisecond_one_runs(tmp_path: Path) -> None:
    """Fifty times two processes start at once in a folder that is not there yet: exactly one has it."""
    with racers(2) as pair:
        for turn in range(50):
            words = race(pair, tmp_path / f"run-{turn}")
            assert sorted(words) == ["busy not held", "held flock"]


@pytest.mark.parametrize("how", ["ENOLCK", "granted"])
def test_without_flock_a_lease_lets_one_run(tmp_path: Path, how: str) -> None:
    """Where flock fails, or is granted to everybody, four racers in thirty rounds still have one winner."""
    with racers(4, how) as found:
        for turn in range(30):
            words = race(found, tmp_path / f"run-{turn}")
            winners = [word for word in words if word.startswith("held")]
            assert len(winners) == 1
            assert winners[0].startswith("held lease: flock")
            assert words.count("busy not held") == 3


def test_a_stale_lease_is_taken_over_by_one(tmp_path: Path) -> None:
    """Thirty times four racers find the lease of a host that fell silent: one of them has it next."""
    with racers(4, "ENOLCK") as found:
        for turn in range(30):
            folder = tmp_path / f"run-{turn}"
            folder.mkdir()
            silent = elsewhere(Holder.current())
            taken = Lease.acquire(folder, silent)
            assert isinstance(taken, Lease)
            taken.close()
            make_old(folder, STALE + 1)
            words = race(found, folder)
            assert sorted(word.split()[0] for word in words) == ["busy", "busy", "busy", "held"]
            assert [path.name for path in folder.glob("lease-*")] == ["lease-000002"]
            assert list(folder.glob(".tmp-*")) == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("fault", ["error=ENOLCK", "error=EOPNOTSUPP", "error=ENOSYS", "retval=0"])
def test_a_kernel_without_flock_leaves_the_lease(tmp_path: Path, fault: str) -> None:
    """With the system call itself failing, or always succeeding, one of two has the run, by lease."""
    prefix = ("strace", "-f", "-o", "/dev/null", "-e", f"inject=flock:{fault}", "-e", "trace=flock")
    with racers(2, prefix=prefix) as pair:
        words = race(pair, tmp_path / "run")
        assert sorted(word.split(":")[0] for word in words) == ["busy not held", "held lease"]


def test_a_loser_changes_no_byte_and_says_who_has_it(run: RunDirectory) -> None:
    """Busy names the process, the host and the time; nothing in the run directory was written."""
    with racers(1) as (winner,):
        assert race([winner], run.path) == ["held flock"]
        before = snapshot(run.path)
        busy = RunLock(run).acquire()
        assert isinstance(busy, Busy)
        assert snapshot(run.path) == before
        assert busy.holder is not None
        assert busy.holder.identity.pid == winner.process.pid
        assert busy.holder.alive() is True
        assert busy.free_in is None
        assert str(winner.process.pid) in busy.text
        assert busy.holder.host in busy.text
        assert "since 2" in busy.text


@pytest.mark.parametrize("words", [(), ("ENOLCK",), ("granted",)])
def test_a_killed_holder_frees_the_run_at_once(run: RunDirectory, words: tuple[str, ...]) -> None:
    """After KILL the next start has the run, by flock as by lease, and signs it with its own name."""
    with racers(2, *words) as (first, second):
        assert race([first], run.path)[0].startswith("held")
        assert race([second], run.path) == ["busy not held"]
        first.process.kill()
        first.process.wait()
        assert race([second], run.path)[0].startswith("held")
        holder = read_holder(run)
        assert holder is not None
        assert holder.identity.pid == second.process.pid


def test_release_lets_the_next_in_and_leaves_no_name(run: RunDirectory) -> None:
    """A released run has no holder, and can be taken again by anybody, this object included."""
    lock = RunLock(run)
    for _ in range(2):
        assert isinstance(lock.acquire(), Held)
        assert read_holder(run) is not None
        assert lock.heartbeat is None
        assert lock.renew()
        lock.release()
        lock.release()
        assert read_holder(run) is None
        assert run.lock.read_bytes() == b""


def test_the_lock_is_not_inherited(run: RunDirectory) -> None:
    """A child that outlives its supervisor does not keep the run."""
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    with sleeper():
        lock.release()
        assert isinstance(RunLock(run).acquire(), Held)


def test_old_text_in_the_lock_is_kept_until_it_is_held(run: RunDirectory) -> None:
    """While another holds the lock its text stays whole; a new holder's shorter text leaves no rest."""
    own = ProcessIdentity.current()
    dead = msgspec.structs.replace(Holder.current(), process=f"{own.pid}:{own.start + 1}:{own.boot}")
    text = msgspec.json.encode(dead) + b"\n" + b"x" * 5000
    run.lock.write_bytes(text)
    fd = os.open(run.lock, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert RunLock(run).acquire() == Busy(str(run.path), None)  # nobody is told that a dead one has it
    assert run.lock.read_bytes() == text
    os.close(fd)
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    assert run.lock.read_bytes().count(b"\n") == 1
    assert read_holder(run) is not None
    lock.release()


def test_a_lock_file_that_was_replaced_excludes_nobody(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock won on a file that has lost its name is not taken for the run's."""
    real, calls = fcntl.flock, []

    def swapped(fd: int, how: int) -> None:
        if not calls:
            run.lock.unlink()
        calls.append(fd)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", swapped)
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    monkeypatch.undo()
    assert isinstance(RunLock(run).acquire(), Busy)
    lock.release()


def test_a_full_disk_does_not_keep_a_run_from_starting(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is the kernel's; that nobody can be named in it costs only the name."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    lock.release()


def test_other_failures_of_flock_are_raised(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO is neither busy nor unsupported, and no descriptor is left over."""
    _refuse_flock(monkeypatch, errno.EIO)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Input/output"):
        RunLock(run).acquire()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_in_place_of_the_lock_is_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    """A symbolic link called lock writes to no other file."""
    target = tmp_path / "target"
    target.write_text("precious")
    run.lock.symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        RunLock(run).acquire()
    assert target.read_text() == "precious"
    assert read_holder(run) is None


def test_where_locks_are_doubted_both_lines_are_held(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system flock and lease are both taken, and the text says why."""
    monkeypatch.setattr(locks, "filesystem_kind", lambda path: Filesystem("nfs4", path, True, False))
    other = Lease.acquire(run.path, elsewhere(Holder.current()))
    assert isinstance(other, Lease)
    lock = RunLock(run)
    busy = lock.acquire()
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert busy.holder.host == "elsewhere"
    assert busy.free_in is not None
    assert 0 < busy.free_in <= STALE
    other.release()
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.path.sameopenfile(fd, named.fileno())))
    with open(run.lock) as named:
        assert isinstance(lock.acquire(), Held)
    monkeypatch.undo()
    assert any(synced), "other hosts are to read who has it"
    assert lock.exclusion == "flock and lease: flock on nfs4 may not reach other hosts"
    assert lock.heartbeat is not None
    assert lock.renew()
    assert lease_heard(run) is not None
    fd = os.open(run.lock, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    lock.release()
    assert lease_heard(run) is None


def test_one_that_got_flock_keeps_out_one_that_did_not(run: RunDirectory) -> None:
    """Where flock fails only for the second, the living holder that signed the lock is still seen."""
    lock = RunLock(run)
    assert isinstance(lock.acquire(), Held)
    with racers(1, "ENOLCK") as (second,):
        assert race([second], run.path) == ["busy not held"]
    lock.release()


# -- who is alive


def test_alive_is_busy_while_any_process_of_the_attempt_lives(run: RunDirectory) -> None:
    """Inherited or opened by itself, one living process keeps it busy; the last one's death frees it."""
    assert is_busy(run) is False
    assert not run.alive.exists()
    fd = hold_shared(run)
    os.set_inheritable(fd, True)
    code = (
        "import sys; from pathlib import Path; from outlast_jobs.locks import hold_shared;"
        "from outlast_jobs.rundir import RunDirectory;"
        "fd = hold_shared(RunDirectory(Path(sys.argv[1]))); print('joined', flush=True); input()"
    )
    with sleeper() as heir:
        os.close(fd)
        joined = subprocess.Popen(
            [sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert joined.stdout is not None
            assert joined.stdout.readline() == b"joined\n"
            assert is_busy(run) is True
            heir.kill()
            heir.wait()
            assert is_busy(run) is True
        finally:
            joined.kill()
            joined.communicate()
    assert is_busy(run) is False


def test_alive_is_not_waited_for_without_end(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at it holds it for a moment; one that was stopped while it looked keeps no worker from its end."""
    monkeypatch.setattr(locks, "_JOIN_PATIENCE", 0.05)
    os.close(hold_shared(run))
    with open(run.alive) as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            hold_shared(run)


def test_alive_is_not_inherited_unless_asked(run: RunDirectory) -> None:
    """A child of one that joined by itself does not keep it busy."""
    fd = hold_shared(run)
    with sleeper():
        assert is_busy(run) is True
        os.close(fd)
        assert is_busy(run) is False


def test_alive_without_flock_is_unknown_not_free(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flock fails or means nothing, nobody is told that the run is free; joining still works."""
    _refuse_flock(monkeypatch)
    fd = hold_shared(run)
    assert is_busy(run) is None
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    assert is_busy(run) is None
    os.close(fd)
