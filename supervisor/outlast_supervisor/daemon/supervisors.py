"""The supervisors of a folder as processes: started in sessions of their own, and found again by their mark.

The mark is a variable in a supervisor's environment: it says whose it is without any file that could be lost,
and it is there from the first instant, before the supervisor has its run's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import processes
from outlast_supervisor.sdnotify import MINE

from .model import Start

MARK = "OUTLAST_DAEMON"
SLOTS = "OUTLAST_SLOTS"
GPUS = "CUDA_VISIBLE_DEVICES"
_GPU = "gpu:"
_MAX_LOG = 1 << 20  # bytes; then the log becomes NAME.log.1
_RUN = (b"outlast_supervisor.cli", b"run")
_FIRST = 6  # words of a command line among which these two are, whatever options Python has before them


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose a supervisor is and what it was started for."""

    folder: str
    file: str
    run_dir: str
    slots: tuple[str, ...] = ()


def start(folder: Path, action: Start, gpus: bool, log: Path) -> ProcessIdentity:
    """Start one; OSError where it cannot be. ``gpus``: the daemon deals out GPUs, so a job sees its own alone."""
    entry = action.entry
    mark = Mark(str(folder), entry.file, entry.run_dir, action.slots)
    output = _open_log(log)
    try:
        child = subprocess.Popen(
            entry.command,
            cwd=folder,
            env=environment(os.environ, mark, gpus),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        if output != subprocess.DEVNULL:
            os.close(output)
    child.returncode = 0  # the keeper reaps every child itself; Popen must not wait for it again
    return ProcessIdentity.of_child(child.pid)


def environment(base: Mapping[str, str], mark: Mark, gpus: bool) -> dict[str, str]:
    """A supervisor's environment; its worker inherits the slots, and not the mark."""
    env = {key: value for key, value in base.items() if key not in (*MINE, SLOTS)}
    env[MARK] = msgspec.json.encode(mark).decode()
    if mark.slots:
        env[SLOTS] = ",".join(mark.slots)
    if gpus:
        env[GPUS] = ",".join(slot.removeprefix(_GPU) for slot in mark.slots if slot.startswith(_GPU))
    return env


def deals_gpus(slots: tuple[str, ...]) -> bool:
    """Whether any of the daemon's slots is a GPU."""
    return any(slot.startswith(_GPU) for slot in slots)


def find(folder: Path) -> dict[ProcessIdentity, Mark]:
    """The supervisors of this folder that live on this host, whichever daemon started them; oldest first."""
    found: dict[ProcessIdentity, Mark] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (mark := _mark_of(int(name))) is not None and mark.folder == str(folder):
            identity = ProcessIdentity.of(int(name))
            if identity is not None:
                found[identity] = mark
    ordered = sorted(found, key=lambda identity: (identity.start, identity.pid))
    # a child that a supervisor has forked and that is not yet its worker looks like it, and is younger
    first: dict[str, ProcessIdentity] = {}
    for identity in ordered:
        first.setdefault(found[identity].run_dir, identity)
    return {identity: found[identity] for identity in ordered if first[found[identity].run_dir] == identity}


def listens(process: ProcessIdentity) -> bool:
    """Whether a supervisor has come so far that SIGHUP is kept and does not end it."""
    return processes.handles(process.pid, signal.SIGHUP)


def _mark_of(pid: int) -> Mark | None:
    prefix = f"{MARK}=".encode()
    with contextlib.suppress(OSError, msgspec.DecodeError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", _FIRST)
        # whatever else inherited the mark, such as a hook, is no supervisor
        if _RUN in itertools.pairwise(words):
            for entry in processes.environment_of(pid):
                if entry.startswith(prefix):
                    return msgspec.json.decode(entry[len(prefix) :], type=Mark)
    return None


def _open_log(path: Path) -> int:
    """Where a supervisor's own lines go; a folder that takes no log does not keep it from running."""
    try:
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size > _MAX_LOG:
                os.replace(path, path.with_name(f"{path.name}.1"))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o666)
    except OSError:
        return subprocess.DEVNULL
