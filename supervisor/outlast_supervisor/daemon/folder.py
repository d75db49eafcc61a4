"""The folder of job files: listed, waited for until they are whole, and read. Used by one thread alone."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from outlast_jobs import durable
from outlast_jobs.jobfile import JobFileError, load_job
from outlast_supervisor.schedulers.start import start_command

from .books import Places, is_draining
from .model import Entry, Snapshot
from .settle import SETTLE, Sight, Signature, settle, took

SUFFIXES = (".yaml", ".yml")
_MOST = 1 << 20  # bytes of a job file; more is refused when it is read


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the folder brought."""

    snapshot: Snapshot
    due: float | None  # monotonic seconds: when to look again, because something is about to settle
    draining: bool = False
    trouble: str = ""  # why the folder could not be looked at; then the snapshot is the one before


class Lost(Exception):
    """Another daemon has the folder."""


class Folder:
    """Remembers what it saw, so that a file is only read when it changed."""

    def __init__(self, path: Path, still_ours: Callable[[], bool | None], known: Iterable[str] = ()) -> None:
        self._path, self._places = path, Places(path)
        self._still_ours = still_ours
        # files of supervisors that live: should one be missing just now, it gets the time that others get
        now = time.monotonic()
        self._sights = {name: Sight(None, now, ()) for name in known}
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, str] = {}
        self._draining = False

    def look(self) -> Look:
        """List the folder, read what has settled. An outage is told and changes nothing."""
        now = time.monotonic()
        try:
            seen, ours = self._list(), self._still_ours()
            if ours is None:  # an unmounted folder looks empty
                return self._outage(now, "its .outlast/lock is gone: unmounted, or removed")
            if not ours:
                raise Lost(f'"{self._path}" was taken by another daemon')
            draining = is_draining(self._places)
        except OSError as error:
            return self._outage(now, error.strerror or str(error))
        self._sights, due = settle(self._sights, seen, now)
        for name, sight in list(self._sights.items()):
            if sight.changed and sight.settled(now):
                taken = self._read(name, now)
                if taken:
                    self._sights[name] = took(sight)
                elif taken is None:
                    due = now + SETTLE
        self._entries = {name: e for name, e in self._entries.items() if name in self._sights}
        self._broken = {name: why for name, why in self._broken.items() if name in self._sights}
        self._draining = draining
        return Look(self._snapshot(), due, draining)

    def _outage(self, now: float, why: str) -> Look:
        """Nothing is known of now, so what was pending has to settle anew afterwards."""
        self._sights = {name: replace(sight, since=now) for name, sight in self._sights.items()}
        text = f"cannot be looked at: {why}; everything stays as it is"
        return Look(self._snapshot(), None, self._draining, text)

    def _snapshot(self) -> Snapshot:
        entries = [
            replace(entry, leaving=self._sights[name].latest is None, bad=self._broken.get(name, ""))
            for name, entry in sorted(self._entries.items())
        ]
        broken = {name: why for name, why in self._broken.items() if name not in self._entries}
        pending = frozenset(self._sights.keys() - self._entries.keys() - broken.keys())
        return Snapshot(tuple(entries), broken, pending)

    def _list(self) -> dict[str, Signature]:
        found: dict[str, Signature] = {}
        for name in os.listdir(self._path):
            if name.endswith(SUFFIXES) and not name.startswith(".") and _is_text(name):
                signature = _signature(self._path / name)
                if signature is not None:
                    found[name] = signature
        return found

    def _read(self, name: str, now: float) -> bool | None:
        """Read a file that has settled; False where that may go well at another look, None: it changed meanwhile."""
        before = self._sights[name].latest
        path = self._path / name
        try:
            entry = _entry(name, path, now)
        except (JobFileError, OSError, ValueError, RecursionError) as error:
            if _signature(path) != before:
                return None
            self._broken[name] = _reason(error)
            return not isinstance(error, OSError)  # which may pass: read again at the next look
        if _signature(path) != before:
            return None
        self._broken.pop(name, None)
        old = self._entries.get(name)
        # a changed priority is no reason to go to the end of the queue
        same_run = old is not None and old.run_dir == entry.run_dir
        self._entries[name] = replace(entry, since=old.since) if old and same_run else entry
        return True


def _is_text(name: str) -> bool:
    """Whether a name is valid UTF-8: what is recorded of a run is, so others cannot be one."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _signature(path: Path) -> Signature | None:
    """How a file looks, links followed; None for a folder and for what is not there any more."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return () if os.path.islink(path) else None  # a link that leads nowhere is broken, not removed
    except OSError as error:
        return (error.errno or 0,)
    if stat.S_ISDIR(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _entry(name: str, path: Path, now: float) -> Entry:
    source = os.path.realpath(path)  # relative paths in it start where the file is, not where a link to it is
    content = durable.read_file(source, _MOST)
    job = load_job(Path(source))
    digest = hashlib.sha256(content).hexdigest()
    # the run directory is named, so that no other is meant if the file changes before it is read again
    run_dir = os.path.realpath(job.run_dir)
    return Entry(
        file=name,
        command=start_command(job, run_dir=run_dir),
        run_dir=run_dir,
        version=f"{os.stat(source).st_mtime_ns}-{digest[:16]}",
        digest=digest,
        since=now,
        priority=job.daemon.priority,
        slots=job.daemon.slots,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)
