"""Find what an attempt started and end it: by descent, by the marker, never by a bare pid."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity

_MAX_ENVIRON = 4 << 20


@dataclass(frozen=True)
class Survivors:
    """Processes of an attempt that are alive; roots are those whose parent is not one of them."""

    all: tuple[ProcessIdentity, ...]
    roots: tuple[ProcessIdentity, ...]

    def __bool__(self) -> bool:
        return bool(self.all)


def children_of(pid: int) -> list[int]:
    """Direct children of a process, over all its threads, zombies included; [] where it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found += [int(word) for word in text.split()]
    return found


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


def of_this_supervisor(ignore: Collection[int]) -> Survivors:
    """What the current attempt has left: all our descendants, since orphans come to us (subreaper).

    ``ignore`` are children of our own that belong to no attempt, with all below them.
    """
    me = os.getpid()
    roots = [pid for pid in children_of(me) if pid not in ignore]
    return _survivors(roots, descendants(roots))


def of_run(run_id: str, ignore: Collection[int] = ()) -> Survivors:
    """What earlier attempts of a run left on this host, found by the marker in the environment.

    A process that cleared its environment is found as long as its parent is one that did not.
    """
    marker = f"{Env.RUN_ID}={run_id}".encode()
    mine = set(ignore) | {os.getpid()}
    everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    marked = [pid for pid in everyone if pid not in mine and carries(pid, marker)]
    below = {pid: parent for pid, parent in descendants(marked).items() if pid not in mine}
    everything = set(marked) | set(below)
    roots = [pid for pid in everything if _parent_of(pid) not in everything]
    return _survivors(roots, dict.fromkeys(everything, 0))


def carries(pid: int, marker: bytes) -> bool:
    """Whether a process was started with exactly this entry in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker in file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return False


def send(identity: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process: pin the pid, compare the start time, then signal."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if ProcessIdentity.of(identity.pid) != identity:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def end(survivors: Survivors, how: str, spare_shielded: bool) -> int:
    """Signal what is left and say how many were reached.

    ``term`` goes to the roots alone, so that a trainer can save before its loader processes die; a root that
    blocks or ignores TERM is killed at once unless ``spare_shielded``. ``kill`` goes to all.
    """
    if how == "kill":
        return sum(send(p, signal.SIGKILL) for p in survivors.all)
    reached = 0
    for process in survivors.roots:
        deaf = not spare_shielded and not heeds(process.pid, signal.SIGTERM)
        reached += send(process, signal.SIGKILL if deaf else signal.SIGTERM)
    set_going(survivors)
    return reached


def set_going(survivors: Survivors) -> None:
    """Let processes that somebody stopped go on: they could heed nothing but KILL, and save nothing."""
    for process in survivors.all:
        send(process, signal.SIGCONT)


def heeds(pid: int, number: int) -> bool:
    """Whether a signal would do anything: it is neither blocked nor ignored."""
    bit = 1 << (number - 1)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in ("SigBlk", "SigIgn") and int(value.strip(), 16) & bit:
            return False
    return True


def unkillable(survivors: Survivors) -> list[int]:
    """Those in uninterruptible sleep: no signal ends them before the kernel lets go."""
    found = []
    for process in survivors.all:
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{process.pid}/stat").read_bytes()
            if stat[stat.rindex(b")") + 2 :].split()[0] == b"D":
                found.append(process.pid)
    return found


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
    root_ids = [i for pid in roots if (i := ProcessIdentity.of(pid)) is not None]
    rest = [i for pid in below if (i := ProcessIdentity.of(pid)) is not None]
    everything = {i.pid: i for i in [*root_ids, *rest]}
    living_roots = list(root_ids)
    # a root that is a zombie leaves its children without a living parent: they are roots now
    root_pids = {i.pid for i in root_ids}
    for i in rest:
        if i.pid not in root_pids and _parent_of(i.pid) not in everything:
            living_roots.append(i)
    return Survivors(tuple(everything.values()), tuple(living_roots))


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])
