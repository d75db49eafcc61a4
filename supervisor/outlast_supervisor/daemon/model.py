"""The daemon's words: job files as they were read, supervisors, how runs ended, and what is to be done."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast_jobs.identity import ProcessIdentity


@dataclass(frozen=True, slots=True)
class Entry:
    """A job file of the folder, as it was last read whole and right."""

    file: str  # its name in the folder
    command: tuple[str, ...]  # starts its supervisor
    run_dir: str  # real path: it names the run
    version: str  # another one after every change, and after a mere touch
    digest: str  # of the content alone
    since: float  # monotonic seconds at which this version was taken
    priority: int = 0
    slots: int = 1
    bad: str = ""  # why the file as it is now is not taken; a running job goes on as it was
    leaving: bool = False  # missing, but not for long enough to count as removed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The folder at one look."""

    entries: tuple[Entry, ...]
    broken: Mapping[str, str] = field(default_factory=dict)  # file -> why it is no job, and never was
    pending: frozenset[str] = frozenset()  # files that were not read yet, or have just gone unread


@dataclass(frozen=True, slots=True)
class Supervisor:
    """One `outlast run` of ours that lives, started by this daemon or by one before it."""

    run_dir: str
    file: str  # the job file that it was started with
    process: ProcessIdentity
    slots: tuple[str, ...]
    version: str  # of the job file, as this supervisor was last told
    digest: str
    began: float  # monotonic seconds; when it was found, for one of an earlier daemon
    ours: bool  # a child of this process, so its exit code will be known
    stopping: str = ""  # why it was told to save and stop


@dataclass(frozen=True, slots=True)
class Past:
    """How the latest supervisor of a run ended, and what follows for this version of its file."""

    version: str
    code: int | None  # None where nobody could see it: killed, or ended while no daemon looked
    fails: int  # ends in a row after which it is to be tried again
    not_before: float  # monotonic seconds
    text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may run at a time."""

    max_running: int | None = None
    slots: tuple[str, ...] = ()


class State(enum.StrEnum):
    """How a job file stands, for people."""

    RUNNING = "running"
    STOPPING = "stopping"
    QUEUED = "queued"  # waits for a place, or for slots
    WAITING = "waiting"  # waits for its time
    ELSEWHERE = "elsewhere"  # another supervisor has the run
    DONE = "done"
    HELD = "held"
    REFUSED = "refused"  # not to be tried again until its file changes


@dataclass(frozen=True, slots=True)
class Standing:
    """One job file's state with its reason."""

    state: State
    reason: str
    run_dir: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a supervisor for this job."""

    entry: Entry
    slots: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Have a supervisor save, stop and end."""

    supervisor: Supervisor
    reason: str


@dataclass(frozen=True, slots=True)
class Reload:
    """Have a supervisor read its job file again."""

    supervisor: Supervisor
    entry: Entry
    reason: str


Action = Start | Stop | Reload


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done now, how each job file stands, and when to plan again though nothing happened."""

    actions: tuple[Action, ...]
    standing: Mapping[str, Standing]
    due: float | None
