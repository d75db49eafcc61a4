"""Find what an attempt started and end it: by descent, by the marker, never by a bare pid.

Who cannot look for want of a descriptor has not seen that nothing is there: what finds processes raises OSError then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity, is_blind

from . import linux

_MAX_ENVIRON = 4 << 20
_NO_PIDFDS = (errno.ENOSYS, errno.EPERM)  # an old kernel, or a container's filter for system calls


class Survivors(Struct, frozen=True):
    """Processes of an attempt that are alive; roots are those whose parent is not one of them."""

    all: tuple[ProcessIdentity, ...]
    roots: tuple[ProcessIdentity, ...]

    def __bool__(self) -> bool:
        return bool(self.all)


NOTHING = Survivors((), ())


def children_of(pid: int) -> list[int]:
    """Direct children of a process, over all its threads, zombies included; [] where it is gone."""
    found: list[int] = []
    if not _kernel_lists_children():
        return [other for other in _everyone() if _parent_of(other) == pid]
    with _unless_gone():
        for task in os.listdir(f"/proc/{pid}/task"):
            # unbuffered: this is looked at between the death of a worker and the next one, for each thread
            path = f"/proc/{pid}/task/{task}/children"
            with _unless_gone(), open(path, "rb", buffering=0) as file:
                found += map(int, file.readall().split())
    return found


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Pass over what a process that is gone, or not ours, does not tell; not that we cannot look at any."""
    try:
        yield
    except OSError as error:
        if is_blind(error):
            raise


@cache
def _kernel_lists_children() -> bool:
    """Whether this kernel was built with lists of children; otherwise each process is asked for its parent."""
    return os.path.exists("/proc/thread-self/children")


def _everyone() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _others() -> list[int]:
    return [pid for pid in _everyone() if pid != os.getpid()]


def descendants(pids: Iterable[int]) -> dict[int, int]:
    """pid -> parent of everything below the given processes, themselves not included."""
    tree: dict[int, int] = {}
    stack = list(pids)
    while stack:
        parent = stack.pop()
        for child in children_of(parent):
            if child not in tree:
                tree[child] = parent
                stack.append(child)
    return tree


def of_this_supervisor(stranger: Callable[[int], bool] = lambda pid: False) -> Survivors:
    """What the current attempt has left: all our descendants, since orphans come to us (subreaper).

    ``stranger`` says of a child of ours that it belongs to no attempt; all below it is passed over too.
    A process that ends while we look gives its children to us behind our back. So nothing is left only
    when all children that we had were dead, and a list made after that has no other one.
    """
    me = os.getpid()
    dead: set[int] = set()
    while True:
        roots = [pid for pid in children_of(me) if not stranger(pid)]
        found = _survivors(roots, descendants(roots))
        if found or dead.issuperset(roots):
            return found
        dead = set(roots)


def of_run(run_id: str) -> Survivors:
    """What earlier attempts of a run left on this host, found by the marker in the environment.

    A process that cleared its environment is found as long as its parent is one that did not.
    """
    return of_any((run_id,))


def of_any(run_ids: Iterable[str], spared: Callable[[int], bool] = lambda pid: False) -> Survivors:
    """The same for several runs; ``spared`` says of a marked process that it is none of theirs all the same."""
    markers = [f"{Env.RUN_ID}={run_id}".encode() for run_id in run_ids]
    marked = [pid for pid in _others() if any(carries(pid, m) for m in markers)]
    return _with_all_below([pid for pid in marked if not spared(pid)])


def holding(path: Path) -> Survivors:
    """Those who have a lock on this file, which they inherited: found whatever their environment says."""
    file, mark = os.stat(path), _lock_mark(path)
    return _with_all_below([pid for pid in _others() if _locks(pid, mark, path.name, file)])


def _lock_mark(path: Path) -> bytes:
    """How the kernel writes a lock on this file in fdinfo: the device of the file system, and the inode.

    An inode's number alone is no file: on two disks the files that were made first have the same. The device is
    looked up by the mount, since st_dev is another one where a file system has several volumes.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        inode = os.fstat(fd).st_ino
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    finally:
        os.close(fd)
    mount = next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        number, _, device = line.split(" ", 3)[:3]
        if number == mount:
            major, minor = map(int, device.split(":"))
            return f" {major:02x}:{minor:02x}:{inode} ".encode()
    return f":{inode} ".encode()  # the mount was taken away under us


def holds(pid: int, name: str) -> bool:
    """Whether a process has a lock on a file of this name; asks no file system, so the loop may call it."""
    return _locks(pid, b"", name)


def together(*found: Survivors) -> Survivors:
    """What was found in several ways, as one."""
    everything = {identity.pid for survivors in found for identity in survivors.all}
    roots = [pid for pid in everything if _parent_of(pid) not in everything]
    return _survivors(roots, everything)


def _locks(pid: int, mark: bytes, name: str, file: os.stat_result | None = None) -> bool:
    """Whether a process has a descriptor with a flock on a file of this mark and name, or just this ``file``.

    Read from fdinfo, which says it without a word to the file system: others' may be dead.
    """
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{fd}").removesuffix(" (deleted)")
                if target.rpartition("/")[2] != name:
                    continue
                lines = Path(f"/proc/{pid}/fdinfo/{fd}").read_bytes().splitlines()
                locked = any(b"FLOCK" in line and mark in line for line in lines)
                if locked and (file is None or _is(f"/proc/{pid}/fd/{fd}", file)):
                    return True
    return False


def _is(path: str, file: os.stat_result) -> bool:
    """Whether it is this file. One of a file system that we have just asked, so this asks no other."""
    try:
        return os.path.samestat(os.stat(path), file)  # volumes of one disk number their files alike
    except OSError:
        return True  # nobody overlooked


def _with_all_below(marked: list[int]) -> Survivors:
    everything = (set(marked) | set(descendants(marked))) - {os.getpid()}
    roots = [pid for pid in everything if _parent_of(pid) not in everything]
    return _survivors(roots, dict.fromkeys(everything, 0))


def carries(pid: int, marker: bytes) -> bool:
    """Whether a process was started with exactly this entry in its environment."""
    return marker in environment_of(pid)


def was_submitted_by_worker(env: Mapping[str, str]) -> bool:
    """Whether a worker has called sbatch for the Slurm job of this environment, and has left its marks to it.

    Then all of that job bears the run's mark, from its first process on, which that of no other job does.
    """
    run_id, first = env.get(Env.RUN_ID), env.get("SLURM_TASK_PID", "")
    if not run_id or not (first.isascii() and first.isdigit()):
        return False
    return carries(int(first), os.fsencode(f"{Env.RUN_ID}={run_id}"))


def unmarked_below_us(pid: int) -> bool:
    """Whether a process descends from us and shows no attempt's marker, ours or another's.

    Programs that set their own title write it where /proc shows the environment.
    """
    marker, me = f"{Env.ATTEMPT}=".encode(), os.getpid()
    if any(entry.startswith(marker) for entry in environment_of(pid)):
        return False
    seen: set[int] = set()
    while pid > 1 and pid not in seen:  # seen: pids may be dealt anew while we climb
        seen.add(pid)
        pid = _parent_of(pid)
        if pid == me:
            return True
    return False


def environment_of(pid: int) -> list[bytes]:
    """The entries with which a process was started; [] where it is gone, or not ours to read."""
    with _unless_gone(), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read(_MAX_ENVIRON).split(b"\0")
    return []


def send(identity: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process: pin the pid, compare the start time, then signal."""
    try:
        fd = linux.pidfd_open(identity.pid)
    except OSError as error:
        return error.errno in _NO_PIDFDS and _send_by_number(identity, number)
    try:
        same = ProcessIdentity.seen(identity.pid) == identity
        if same:
            linux.pidfd_send_signal(fd, number)
        return same
    except OSError as error:
        blind = is_blind(error)
    finally:
        os.close(fd)
    return blind and _send_by_number(identity, number)  # that was the last descriptor: it is free again


def _send_by_number(identity: ProcessIdentity, number: int) -> bool:
    """Where no pid can be pinned: look and signal at once, which leaves a moment and not a lifetime."""
    try:
        if ProcessIdentity.of(identity.pid) != identity:
            return False
        os.kill(identity.pid, number)
    except OSError:
        return False
    return True


def end(survivors: Survivors, how: str, spare_shielded: bool, stop: int = signal.SIGTERM) -> int:
    """Signal what is left and say how many were reached.

    ``term`` goes to the roots alone, so that a trainer can save before its loader processes die; a root that
    blocks or ignores TERM is killed at once unless ``spare_shielded``. One that handles the ``stop`` signal
    of its job gets that: TERM may be its death in the middle of a save. ``kill`` goes to all.
    """
    if how == "kill":
        return sum(send(p, signal.SIGKILL) for p in survivors.all)
    reached = 0
    for process in survivors.roots:
        number = stop if handles(process.pid, stop) else signal.SIGTERM
        deaf = not spare_shielded and not heeds(process.pid, number)
        reached += send(process, signal.SIGKILL if deaf else number)
    set_going(survivors)
    return reached


def set_going(survivors: Survivors) -> None:
    """Let processes that somebody stopped go on: they could heed nothing but KILL, and save nothing."""
    for process in survivors.all:
        send(process, signal.SIGCONT)


def heeds(pid: int, number: int) -> bool:
    """Whether a signal would do anything: it is neither blocked nor ignored."""
    return not _in_mask(pid, number, "SigBlk", "SigIgn")


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    return _in_mask(pid, number, "SigCgt")


def hears(pid: int, number: int) -> bool:
    """Whether it has a handler, or its first thread blocks it, since another one or a ``signalfd`` waits for it."""
    return _in_mask(pid, number, "SigCgt", "SigBlk")


def _in_mask(pid: int, number: int, *masks: str) -> bool:
    bit = 1 << (number - 1)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in masks and int(value.strip(), 16) & bit:
            return True
    return False


def unkillable(survivors: Survivors, late: Collection[int]) -> list[int]:
    """Those that no signal ends before the kernel lets go: they sleep uninterruptibly, or are ``late`` to die.

    One that waits while it closes its files at its end looks like any sleeper. One thread that is held is enough:
    the first one may have ended, as of a trainer whose save is in a thread of its own.
    """
    found = []
    for process in survivors.all:
        states = _states(process.pid)
        if b"D" in states or (process.pid in late and states - {b"Z", b"X"}):
            found.append(process.pid)
    return found


def _states(pid: int) -> set[bytes]:
    """The states of a process's threads."""
    found = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):
                stat = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes()
                found.add(stat[stat.rindex(b")") + 2 :].split()[0])
    return found


def in_the_kernel(pids: Iterable[int]) -> str:
    """Processes that no signal ends, and why nothing is started beside them, for people."""
    named = ", ".join(map(str, pids))
    return f"pids {named}: killed, but held in the kernel (a file system that does not answer?)"


def reap(ended: Callable[[int, int], None]) -> None:
    """Collect every child that ended, adopted orphans too: ``ended(pid, wait status)``."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended(pid, status)


def _survivors(roots: Iterable[int], below: Iterable[int]) -> Survivors:
    root_ids = [i for pid in roots if (i := ProcessIdentity.seen(pid)) is not None]
    rest = [i for pid in below if (i := ProcessIdentity.seen(pid)) is not None]
    everything = {i.pid: i for i in [*root_ids, *rest]}
    living_roots = list(root_ids)
    # a root that is a zombie leaves its children without a living parent: they are roots now
    root_pids = {i.pid for i in root_ids}
    for i in rest:
        if i.pid not in root_pids and _parent_of(i.pid) not in everything:
            living_roots.append(i)
    return Survivors(tuple(everything.values()), tuple(living_roots))


def _parent_of(pid: int) -> int:
    with _unless_gone():
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split()[1])
    return 0
