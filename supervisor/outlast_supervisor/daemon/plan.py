"""What the daemon does next, as a pure function of the folder, the supervisors, the past and the limits.

Runs are told apart by their run directory, never by the name of a file: so two files never get two supervisors
of one run, and a renamed file keeps its training. Whatever has a supervisor is never started, whoever started
it and whatever state it is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .model import (
    Action,
    Entry,
    Limits,
    Past,
    Plan,
    Reload,
    Snapshot,
    Standing,
    Start,
    State,
    Stop,
    Supervisor,
)
from .outcome import final_state, passing_state

DRAINING = "the folder is drained"


def plan(
    folder: Snapshot,
    supervisors: Sequence[Supervisor],
    past: Mapping[str, Past],
    limits: Limits,
    *,
    draining: bool,
    now: float,
) -> Plan:
    """The actions due at ``now`` (monotonic seconds), each with its reason; ``past`` is by run directory."""
    made = _Making()
    of_run = {supervisor.run_dir: supervisor for supervisor in supervisors}
    chosen = _choose(folder.entries, of_run, made)
    for file, why in folder.broken.items():
        made.standing[file] = Standing(State.REFUSED, why)
    for supervisor in supervisors:
        _tend(supervisor, chosen.get(supervisor.run_dir), folder, draining, made)
    ready: list[tuple[float, Entry, str]] = []
    for run_dir, entry in chosen.items():
        if run_dir not in of_run:
            _consider(entry, past.get(run_dir), draining, now, ready, made)
    _fill(ready, supervisors, limits, made)
    return Plan(tuple(made.actions), made.standing, min(made.dues, default=None))


@dataclass
class _Making:
    actions: list[Action] = field(default_factory=list)
    standing: dict[str, Standing] = field(default_factory=dict)
    dues: list[float] = field(default_factory=list)

    def stands(self, entry: Entry, state: State, reason: str) -> None:
        self.standing[entry.file] = Standing(state, reason, entry.run_dir)


def _choose(entries: Sequence[Entry], of_run: Mapping[str, Supervisor], made: _Making) -> dict[str, Entry]:
    """One job file for each run directory: who has it already, else the first by name."""
    claims: dict[str, list[Entry]] = {}
    for entry in entries:
        claims.setdefault(entry.run_dir, []).append(entry)
    chosen: dict[str, Entry] = {}
    for run_dir, claimants in claims.items():
        known = of_run.get(run_dir)

        def rank(entry: Entry, known: Supervisor | None = known) -> tuple[bool, bool, str]:
            # a file that is about to be gone yields: most likely the other is its new name
            return entry.leaving, known is None or known.file != entry.file, entry.file

        first, *others = sorted(claimants, key=rank)
        chosen[run_dir] = first
        for other in others:
            if not other.leaving:
                why = f'names the run directory of "{first.file}"; give one of them another run_dir'
                made.stands(other, State.REFUSED, why)
    return chosen


def _tend(
    supervisor: Supervisor, entry: Entry | None, folder: Snapshot, draining: bool, made: _Making
) -> None:
    """What a supervisor that lives is told."""
    reason = _unwanted(supervisor, entry, folder, draining)
    if reason and not supervisor.stopping:
        made.actions.append(Stop(supervisor, reason))
    if entry is None:
        if supervisor.file in folder.broken:
            why = f"goes on as it was: {folder.broken[supervisor.file]}"
            made.standing[supervisor.file] = Standing(State.RUNNING, why, supervisor.run_dir)
        return
    if stopping := reason or supervisor.stopping:
        made.stands(entry, State.STOPPING, stopping)
        return
    if entry.bad:
        made.stands(entry, State.RUNNING, f"goes on as it was: {entry.bad}")
        return
    made.stands(entry, State.RUNNING, f"process {supervisor.process.pid}")
    if entry.version != supervisor.version and entry.file == supervisor.file:
        made.actions.append(Reload(supervisor, entry, "its job file changed"))


def _unwanted(supervisor: Supervisor, entry: Entry | None, folder: Snapshot, draining: bool) -> str:
    """Why a supervisor has to save and stop; empty where it is wanted."""
    if draining:
        return DRAINING
    if entry is None:
        if supervisor.file in folder.broken or supervisor.file in folder.pending:
            return ""  # nobody can say what it asks for, and that is no reason to stop a training
        there = any(other.file == supervisor.file for other in folder.entries)
        return "its job file names another run directory now" if there else "its job file was removed"
    if entry.file != supervisor.file and entry.digest != supervisor.digest and not entry.bad:
        return f'goes on as "{entry.file}", with what that says'  # the old name can't be read again
    return ""


def _consider(
    entry: Entry,
    past: Past | None,
    draining: bool,
    now: float,
    ready: list[tuple[float, Entry, str]],
    made: _Making,
) -> None:
    """Whether a job without a supervisor is to be started, now or later or not at all."""
    known = past if past is not None and past.version == entry.version else None
    if entry.leaving:
        return
    if known is not None and (state := final_state(known.code)) is not None:
        made.stands(entry, state, known.text)
    elif entry.bad:
        made.stands(entry, State.REFUSED, entry.bad)
    elif draining:
        made.stands(entry, State.QUEUED, DRAINING)
    elif known is not None and known.not_before > now:
        made.stands(entry, passing_state(known.code), known.text)
        made.dues.append(known.not_before)
    else:
        # whoever was tried before waits from when it could be tried again: a crash loop is no priority
        since = known.not_before if known is not None else entry.since
        ready.append((since, entry, known.text if known is not None else "its job file is there"))


def _fill(
    ready: list[tuple[float, Entry, str]],
    supervisors: Sequence[Supervisor],
    limits: Limits,
    made: _Making,
) -> None:
    """Give places and slots to those who wait, in order; who is first for slots is not passed by for them."""
    taken = {slot for supervisor in supervisors for slot in supervisor.slots}
    free = [slot for slot in limits.slots if slot not in taken]
    running, first = len(supervisors), ""
    for _, entry, reason in sorted(ready, key=lambda r: (-r[1].priority, r[0], r[1].file)):
        need = entry.slots if limits.slots else 0
        if need > len(limits.slots):
            why = f"needs {need} slots and the daemon has {len(limits.slots)}"
            made.stands(entry, State.REFUSED, why)
        elif limits.max_running is not None and running >= limits.max_running:
            made.stands(entry, State.QUEUED, f"waits for a place: --max-running is {limits.max_running}")
        elif need and (first or need > len(free)):
            behind = f', behind "{first}"' if first else ""
            made.stands(entry, State.QUEUED, f"waits for {need} of {len(limits.slots)} slots{behind}")
            first = first or entry.file
        else:
            made.actions.append(Start(entry, tuple(free[:need]), reason))
            made.stands(entry, State.RUNNING, "starts")
            free, running = free[need:], running + 1
