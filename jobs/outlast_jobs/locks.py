"""The two locks of a run: `lock` says who may start, `alive` whether anything of an attempt still lives."""

from __future__ import annotations

import errno
import fcntl
import os
import time

import msgspec
from msgspec import Struct

from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.lease import HEARTBEAT, Holder, Lease, LeaseBusy, parse_holder, read_lease
from outlast_jobs.rundir import RunDirectory

_UNSUPPORTED = frozenset([errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
_RENAMES = 10  # of one run directory, while one start opens its lock
_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB
_LIMIT = 16 * 1024
_PATIENCE = 0.3  # seconds in which a winner has surely written who it is
_JOIN_PATIENCE = 5.0  # seconds; whoever looks whether `alive` is busy holds it for microseconds


class Held(Struct, frozen=True):
    """The run is ours, and by what means."""

    holder: Holder
    exclusion: str


class Busy(Struct, frozen=True):
    """Another supervisor has the run; ``holder`` is None where it could not be read who."""

    run: str
    holder: Holder | None
    free_in: float | None = None
    """Seconds after which a lease that is not renewed is taken over; None where the kernel keeps the lock."""

    @property
    def who(self) -> str:
        """Who, where, since when, for people; empty where that could not be read."""
        if self.holder is None:
            return ""
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.holder.since))
        except (OverflowError, ValueError, OSError):
            since = "an unknown time"  # whoever can write there can write anything
        return f"process {self.holder.identity.pid} on {self.holder.host}, since {since}"

    @property
    def text(self) -> str:
        """That the run cannot be had, and who has it, for people."""
        if self.holder is None:
            return (
                f'cannot take "{self.run}": another supervisor has it, or a command that writes there, '
                "and has not said who it is"
            )
        wait = f"; if it is dead, the run is free in {self.free_in:.0f} s" if self.free_in is not None else ""
        return f'cannot take "{self.run}": another supervisor has it: {self.who}{wait}'


class RunLock:
    """The right to supervise a run; the kernel frees it when this process ends, however it ends."""

    def __init__(self, run: RunDirectory, *, signs: bool = True) -> None:
        """``signs``: say in the file who has it. A command that has it for a moment is no supervisor to be asked."""
        self._run = run
        self._signs = signs
        self._fd = -1
        self._lease: Lease | None = None
        self._before: LeaseBusy | None = None  # what an earlier try found
        self._token = ""
        self.exclusion = "not held"

    @property
    def heartbeat(self) -> float | None:
        """Seconds between two calls of `renew`; None where flock alone does, which needs none."""
        return HEARTBEAT if self._lease else None

    def acquire(self) -> Held | Busy:
        """Take the run, or say who has it. A loser changes no byte of it; OSError where it can't be tried."""
        if self._fd >= 0:
            raise RuntimeError(f'the lock of "{self._run.path}" is already held by this object')
        while True:
            fd = _open_lock(self._run)
            try:
                taken = self._try(fd)
            except BaseException:
                os.close(fd)
                raise
            if isinstance(taken, Held):
                self._fd = fd
            else:
                os.close(fd)
            if taken is not None:
                return taken

    def renew(self) -> bool:
        """Renew the lease where there is one. False: it was lost; stop, and write nothing more."""
        return self._lease.renew() if self._lease else True

    def is_named(self) -> bool | None:
        """Whether the run directory still names the lock that we hold; None where it names none at all."""
        return _is_named(self._run, self._fd)

    def release(self) -> None:
        """Let the next one in; no error where nothing is held."""
        if self._fd < 0:
            return
        try:
            # another's name, where only leases exclude, is not ours to remove
            if _signed(self._fd) == self._token:
                os.ftruncate(self._fd, 0)
        except OSError:
            pass  # a full or read-only disk must not keep the lock
        if self._lease:
            self._lease.release()
            self._lease = None
        os.close(self._fd)
        self._fd = -1
        self.exclusion = "not held"

    def _try(self, fd: int) -> Held | Busy | None:
        """None: the file was removed or replaced meanwhile, and a lock on the old one excludes nobody."""
        doubt = self._flock(fd)
        if isinstance(doubt, Busy):
            return doubt
        return self._second_line(fd, doubt) if _is_named(self._run, fd) else None

    def _flock(self, fd: int) -> Busy | str | None:
        """Busy, or why flock can't be relied on here, or None where it can."""
        try:
            fcntl.flock(fd, _EXCLUSIVE)
        except BlockingIOError:
            return Busy(str(self._run.path), _who(self._run))
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return f"flock not supported here ({error.strerror})"
        return "flock is granted to everybody here" if _granted_twice(fd) else None

    def _second_line(self, fd: int, doubt: str | None) -> Held | Busy:
        kind = filesystem_kind(self._run.path)
        holder = Holder.current()
        if doubt is None and kind.trusted_locks:
            exclusion = "flock"
        else:
            known = read_holder(self._run) if doubt else None
            if known is not None and known.alive():  # it got flock where we did not
                return Busy(str(self._run.path), known)
            taken = Lease.acquire(self._run.path, holder, self._before)
            if isinstance(taken, LeaseBusy):
                self._before = taken
                return Busy(str(self._run.path), taken.holder, taken.free_in)
            self._lease = taken
            exclusion = (
                f"lease: {doubt}"
                if doubt
                else f"flock and lease: flock on {kind.type} may not reach other hosts"
            )
        self._sign(fd, holder if self._signs else None, network=kind.network)
        self._token = holder.token if self._signs else ""
        self.exclusion = exclusion
        return Held(holder, exclusion)

    def _sign(self, fd: int, holder: Holder | None, *, network: bool) -> None:
        """Say who has it. Written over the old text in one piece, then cut: a reader never finds it empty.

        Only people need it, so a disk that takes no byte does not keep the run from starting.
        """
        data = b"" if holder is None else msgspec.json.encode(holder) + b"\n"
        try:
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
            if network:
                os.fsync(fd)
        except OSError:
            pass


def read_holder(run: RunDirectory) -> Holder | None:
    """Whoever signed the lock last and did not release it, dead or alive. Takes no lock."""
    try:
        fd = os.open(run.lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_holder(os.pread(fd, _LIMIT, 0))
    except OSError:
        return None
    finally:
        os.close(fd)


def _signed(fd: int) -> str | None:
    """The token of whoever signed last; None for nobody."""
    holder = parse_holder(os.pread(fd, _LIMIT, 0))
    return holder.token if holder else None


def lease_heard(run: RunDirectory) -> float | None:
    """Unix time of the last heartbeat of the lease; None where none is held. Takes nothing."""
    try:
        found = read_lease(run.path)
    except OSError:
        return None
    return found[1] if found else None


def hold_shared(run: RunDirectory) -> int:
    """Hold `alive`, shared, until the descriptor is closed, also by all to whom it was handed on.

    A process that calls this keeps it where launchers closed what they had inherited. Where flock is not supported the
    descriptor holds nothing, and only the environment finds survivors.
    """
    fd = os.open(run.alive, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + _JOIN_PATIENCE
    try:
        while True:
            try:
                fcntl.flock(fd, _SHARED)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)  # a lock can't be waited for with an end, so it is tried until then
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    break
                raise
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_busy(run: RunDirectory) -> bool | None:
    """Whether any process holds `alive`, this one included; None where flock can't tell here."""
    try:
        fd = os.open(run.alive, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, _EXCLUSIVE)
        return None if _granted_twice(fd) else False
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    finally:
        os.close(fd)


def _open_lock(run: RunDirectory) -> int:
    tries = 0
    while True:
        run.path.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # in between, one that begins anew has put the old run aside
            tries += 1
            if tries == _RENAMES:
                raise


def _is_named(run: RunDirectory, fd: int) -> bool | None:
    try:
        return os.path.samestat(os.stat(run.lock, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return None


def _granted_twice(fd: int) -> bool:
    """Whether a lock that we hold is granted a second time: then it means nothing on this file system."""
    # the same file, whatever its name is now
    second = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(second, _EXCLUSIVE)
    except OSError:
        return False
    finally:
        os.close(second)
    return True


def _who(run: RunDirectory) -> Holder | None:
    """Who has the lock that we did not get; a winner may be just about to write it over a dead one's name."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        holder = read_holder(run)
        if holder is not None and holder.alive() is not False:
            return holder
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)  # it writes its name within a moment, and nothing tells when
