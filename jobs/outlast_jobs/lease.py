"""The second line of exclusion, where flock fails or cannot be trusted: numbered files with a heartbeat.

The holder is who made the file with the highest number, as long as its heartbeat is younger than a minute.
Taking over means to make the next number, which only one of any number of racers can; nothing is ever
renamed or removed to get it, so nobody can act on a file that has changed since it was looked at. Releasing
leaves the file, marked, so that numbers only grow. What no lease can do: a holder that was suspended for over
a minute may go on for a moment before it looks; fencing makes that harmless.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from pathlib import Path

import msgspec
from msgspec import Struct

from outlast_jobs import durable, safejson
from outlast_jobs.contract import Schema
from outlast_jobs.errors import IntegrityError
from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.identity import ProcessIdentity, hostname, is_this_boot

HEARTBEAT = 10.0
"""Seconds between two renewals."""
STALE = 60.0
"""Seconds without a heartbeat after which the holder is taken for dead."""
_SKEW = 5.0  # a heartbeat further in the future than this tells of differing clocks, not of a live holder
_TRIES = 16
_LIMIT = 16 * 1024
_FIRST_TIME = "time:[4026531834]"  # PROC_TIME_INIT_INO of the kernel's proc_ns.h
_NAME = re.compile(r"lease-(\d{6}|[1-9]\d{6,})")
_RELEASED = b"released\n"
_NO_LINKS = frozenset([errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL])


class Holder(msgspec.Struct, frozen=True, tag_field="schema", tag=Schema.LOCK):
    """Who has a run: what `lock` and the lease files say."""

    host: str
    process: str  # a ProcessIdentity
    namespace: str  # a pid says nothing in another container of the same host
    since: float
    token: str

    @classmethod
    def current(cls) -> Holder:
        """The calling process, from now on."""
        own = ProcessIdentity.current()
        return cls(hostname(), str(own), _namespace(), time.time(), uuid.uuid4().hex)

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity.parse(self.process)

    @property
    def known_here(self) -> bool:
        """Whether it can be seen from here if the holder lives: same boot, same pid namespace."""
        return is_this_boot(self.identity.boot) and self.namespace == _namespace()

    def alive(self) -> bool | None:
        """Whether the holder lives; None where that can't be seen, from here or now."""
        try:
            return ProcessIdentity.seen(self.identity.pid) == self.identity if self.known_here else None
        except OSError:
            return None

    def has(self, folder: Path) -> bool | None:
        """The same, and that it has the run in this folder: not the one that this is a copy of."""
        alive = self.alive()
        return False if alive and self._works_elsewhere(folder / "lock") else alive

    def _works_elsewhere(self, lock: Path) -> bool:
        """Whether the lock that it has open is certainly another file than this one."""
        others: list[os.stat_result] = []
        try:
            ours = os.stat(lock, follow_symlinks=False)
            for fd in os.listdir(folder := f"/proc/{self.identity.pid}/fd"):
                name = ""
                with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                    name = os.readlink(f"{folder}/{fd}").rpartition("/")[2]
                if name == lock.name:
                    others.append(os.stat(f"{folder}/{fd}"))
        except OSError:  # another user's, say
            return False
        if any(os.path.samestat(ours, other) for other in others):
            return False
        # of one device the number of an inode tells; two devices may be two mounts of one
        return any(ours.st_dev == other.st_dev for other in others) or (
            bool(others) and filesystem_kind(lock).trusted_locks
        )


class LeaseBusy(Struct, frozen=True):
    """Another has the lease; ``holder`` is None where its file does not say who."""

    holder: Holder | None
    free_in: float | None
    """Seconds after which it is stale if nothing is heard; None for a holder that is seen to live."""
    heard: tuple[int, float] | None = None
    """The number of its file and the time of the last heartbeat, as last seen."""
    since: float = 0.0
    """When that was seen first, in seconds of this host's own clock."""

    def silent(self, seen: _Seen | None, now: float) -> bool:
        """Whether nothing was heard for long while it was watched: that is dead whatever the clocks of others say."""
        return seen is not None and self.heard == (seen.number, seen.heard) and now - self.since >= STALE


class _Seen(Struct, frozen=True):
    """The newest lease file, as looked at."""

    number: int
    holder: Holder | None
    heard: float  # its time on the file server's clock
    free: bool  # released, or its holder is seen to be dead
    alive: bool = False  # its holder is seen to live


class Lease:
    """A lease that is held. Renew it every HEARTBEAT seconds."""

    def __init__(self, folder: Path, holder: Holder, number: int, fd: int, renewed: float) -> None:
        self._folder = folder
        self._holder = holder
        self._number = number
        self._fd = fd
        self._renewed = renewed

    @classmethod
    def acquire(cls, folder: Path, holder: Holder, before: LeaseBusy | None = None) -> Lease | LeaseBusy:
        """Take the lease if it is free or stale; exactly one of several that try at once gets it.

        ``before`` is the answer to an earlier try: a heartbeat that stands still is stale though it lies in the
        future, as where the file server's clock was set back.
        """
        for _ in range(_TRIES):
            begun = _now()
            seen = _look(folder)
            if seen is not None and not seen.alive and before is not None and before.silent(seen, begun):
                seen = msgspec.structs.replace(seen, free=True)
            if (busy := _plainly_busy(seen)) is not None:
                return _watched(busy, seen, before, begun)
            taken = _take(folder, holder, seen)
            if isinstance(taken, LeaseBusy):
                return _watched(taken, seen, before, begun)
            if taken is not None:
                return cls(folder, holder, *taken, begun)
        return LeaseBusy(None, STALE)  # others are forever quicker: one of them has it

    def renew(self) -> bool:
        """Give a sign of life. False: the lease was lost to another, and nothing may be written any more."""
        begun = _now()
        try:
            if begun - self._renewed > STALE / 2:
                return self._take_again(begun)
            os.pwrite(self._fd, b"\n", os.fstat(self._fd).st_size - 1)  # a new time, the same content
            os.fsync(self._fd)
            numbers = _numbers(self._folder)
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.ENOENT):
                return False
            raise
        if max(numbers, default=0) != self._number:
            return False
        self._renewed = begun
        return True

    def release(self) -> None:
        """Let the next one in at once. The file stays, since its number must not be used again."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _RELEASED, 0)
            os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Drop the descriptor and leave the lease as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_again(self, begun: float) -> bool:
        """After a long silence somebody may be about to take over: race for the next number as they do."""
        taken = _take(self._folder, self._holder, _Seen(self._number, self._holder, 0.0, free=True))
        if taken is None or isinstance(taken, LeaseBusy):
            return False
        os.close(self._fd)
        self._number, self._fd = taken
        self._renewed = begun
        return True


def read_lease(folder: Path) -> tuple[Holder | None, float] | None:
    """Who has the lease, and the unix time of the last heartbeat; None where it is free. Takes nothing."""
    seen = _look(folder)
    return None if seen is None or seen.free else (seen.holder, seen.heard)


def _plainly_busy(seen: _Seen | None) -> LeaseBusy | None:
    """Busy by this host's clock, which is enough to stay away and spares the loser any write."""
    if seen is None or seen.free:
        return None
    if seen.alive:
        return LeaseBusy(seen.holder, None)
    age = time.time() - seen.heard
    return LeaseBusy(seen.holder, STALE - max(age, 0.0)) if -_SKEW <= age < STALE else None


def _watched(busy: LeaseBusy, seen: _Seen | None, before: LeaseBusy | None, now: float) -> LeaseBusy:
    """The answer, with what has been seen since when."""
    heard = (seen.number, seen.heard) if seen is not None else None
    since = before.since if before is not None and before.heard == heard else now
    return msgspec.structs.replace(busy, heard=heard, since=since)


def _take(folder: Path, holder: Holder, seen: _Seen | None) -> tuple[int, int] | LeaseBusy | None:
    """Number and descriptor of the lease taken; None where another was quicker: look again."""
    candidate = folder / f"{durable.TEMPORARY}lease-{uuid.uuid4().hex}"
    content = msgspec.json.encode(holder) + b"\n"
    durable.write_file(candidate, content)
    try:
        if seen is not None and not seen.free:
            # Old by our clock, which may be wrong: ask the file server's, by the file that was just written.
            age = os.stat(candidate).st_mtime - seen.heard
            if age < STALE:
                return LeaseBusy(seen.holder, STALE - max(age, 0.0))
        number = seen.number + 1 if seen else 1
        path = folder / f"lease-{number:06d}"
        if not _make(candidate, path, content, holder):
            return None
        # A racer that slept through a whole life of a lease makes a number that was used: it yields.
        if max(_numbers(folder)) != number:
            path.unlink(missing_ok=True)
            return None
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    finally:
        candidate.unlink(missing_ok=True)
    for old in _numbers(folder):
        if old < number:
            with contextlib.suppress(OSError):
                (folder / f"lease-{old:06d}").unlink()
    return number, fd


def _make(candidate: Path, path: Path, content: bytes, holder: Holder) -> bool:
    """Give the candidate its number; False where that is taken."""
    try:
        os.link(candidate, path, follow_symlinks=False)
        return True
    except FileExistsError:
        # A link call that was answered twice (NFS) fails though it was done.
        _, found = _read(path)
        return found is not None and found.token == holder.token and os.stat(candidate).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        durable.write_file(path, content)
    except FileExistsError:
        return False
    return True


def _look(folder: Path) -> _Seen | None:
    for _ in range(_TRIES):
        number = max(_numbers(folder), default=0)
        if not number:
            return None
        path = folder / f"lease-{number:06d}"
        try:
            released, holder = _read(path)
            heard = os.stat(path, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            continue  # a newer one has just taken its place
        alive = holder.has(folder) if holder is not None else None
        return _Seen(number, holder, heard, free=released or alive is False, alive=alive is True)
    raise OSError(errno.EAGAIN, "the lease files change too fast to be looked at", str(folder))


def _read(path: Path) -> tuple[bool, Holder | None]:
    """Whether the lease was released, and whose it is as far as that can be read."""
    try:
        data = durable.read_file(path, _LIMIT)
    except IntegrityError:
        return False, None
    return data.startswith(_RELEASED), parse_holder(data)


def parse_holder(data: bytes) -> Holder | None:
    """The holder in a lock's or lease's first line; None for anything else."""
    line, newline, _ = data.partition(b"\n")
    if not newline:
        return None
    try:
        tree = safejson.parse_object(line, what="holder", limit=_LIMIT)
        holder = msgspec.convert(tree, Holder)
        ProcessIdentity.parse(holder.process)
    except ValueError:
        return None
    return holder


def _numbers(folder: Path) -> list[int]:
    return [int(m[1]) for name in os.listdir(folder) if (m := _NAME.fullmatch(name))]


def _namespace() -> str:
    """Of pids, and of time where that is one of its own: the kernel then tells another start of each process."""
    try:
        return f"{os.readlink('/proc/self/ns/pid')}{_time_namespace()}"
    except OSError:
        return ""


def _time_namespace() -> str:
    try:
        found = os.readlink("/proc/self/ns/time")
    except OSError:  # an older kernel
        return ""
    return "" if found == _FIRST_TIME else f" {found}"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # a suspended host's silence counts
