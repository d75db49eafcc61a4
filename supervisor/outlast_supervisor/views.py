"""What `outlast status` shows, as values: from a snapshot and a few facts to rows, notes and details."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from outlast_jobs.contract import ExitCode
from outlast_jobs.units import format_duration, format_size
from outlast_supervisor.progress import at_risk, left_text, loss_text, number, rate_text, step_text

SILENT = 90.0
"""Seconds without a new snapshot after which its supervisor is called silent; it renews them every 30 s."""
LARGE_LOG = 1 << 30
"""Bytes of log from which on to warn."""
HEADINGS = ("AT RISK", "RUN", "STATE", "STEP", "LOSS", "RATE", "LEFT", "SAVED")
_ENDED = frozenset({"finished", "ended", "stopped", "saved", "done", "held"})


class Facts(Struct, frozen=True):
    """What is known besides the snapshot."""

    now: float  # unix seconds
    supervisor_alive: bool | None = None  # None where it is on another host, or not known
    log_bytes: int = 0
    held: str | None = None  # from the journal, where there is no snapshot
    done: bool = False
    attempts: int = 0
    proof: tuple[str, ...] = ()  # what is to be said of the run's proof


class Row(Struct, frozen=True):
    """One run: the cells under HEADINGS, what has to be said below them, and how urgent that is."""

    cells: tuple[str, ...]
    notes: tuple[str, ...]
    details: tuple[tuple[str, str], ...]
    level: str  # good, busy, bad


def row(path: str, status: Mapping[str, Any] | None, facts: Facts) -> Row:
    """A run as a row of the table."""
    if status is None:
        return _without_snapshot(path, facts)
    get = status.get
    silence = silent(status, facts)
    save = get("last_save")
    saved = _ago(save.get("at"), facts.now) if isinstance(save, Mapping) else ""
    running = not ended(status)
    moving = running and facts.supervisor_alive is not False  # else nothing comes nearer to its end
    cells = (
        at_risk(status) if running or get("steps_at_risk") else "",
        str(get("name") or path),
        silence or state_text(status),
        step_text(status),
        loss_text(get("loss")),
        rate_text(get("rate")) if moving else "",
        left_text(get("eta")) if moving else "",
        saved,
    )
    notes = _notes(status, facts)
    bad = bool(silence or get("held") or get("unprotected") or get("violation") or get("unjournaled"))
    return Row(cells, notes, _details(path, status), "bad" if bad else "good" if get("done") else "busy")


def ended(status: Mapping[str, Any]) -> bool:
    """Whether a snapshot is the last that its supervisor meant to write."""
    return bool(status.get("done") or status.get("held")) or str(status.get("state")) in _ENDED


def silent(status: Mapping[str, Any], facts: Facts) -> str:
    """Since when and where a supervisor that should be there was not heard; empty where all is well."""
    if ended(status):
        return ""
    as_of = number(status.get("as_of"))
    since = f"since {when(as_of)} on {status.get('host')}"
    if facts.supervisor_alive is False:
        return f"gone {since}"
    if as_of is None or facts.now - as_of > SILENT:
        return f"silent {since}"
    return ""


_FINISHED: dict[object, str] = {ExitCode.SAVED: "not done", ExitCode.UNUSABLE: "unusable"}
"""What a supervisor that has ended left behind, by its exit code."""


def state_text(status: Mapping[str, Any]) -> str:
    """The state in a few words, with the phase where that says more."""
    if status.get("done"):
        return "done"
    if status.get("held"):
        return "held"
    if status.get("state") == "finished":
        return _FINISHED.get(status.get("exit_code"), "ended")
    state, phase = str(status.get("state") or "unknown"), status.get("phase")
    return f"{state} ({phase})" if phase and phase != "train" and not ended(status) else state


def when(at: object) -> str:
    """A moment in local time."""
    moment = number(at)
    if moment is None:
        return "an unknown time"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def _ago(at: object, now: float) -> str:
    moment = number(at)
    return "" if moment is None else f"{format_duration(max(0, round(now - moment)))} ago"


def _notes(status: Mapping[str, Any], facts: Facts) -> tuple[str, ...]:
    get = status.get
    found: list[str] = []
    if facts.supervisor_alive is False and not ended(status):
        found.append(
            'its supervisor was killed, or could not write its end; "outlast run" with the same job goes on'
        )
    if get("held"):
        found.append(_held(str(get("held"))))
    for key in ("unprotected", "violation", "pending"):
        if get(key):
            found.append(f"{key}: {get(key)}" if key != "pending" else str(get(key)))
    if get("unjournaled"):
        found.append("unjournaled: the journal cannot be written; events are kept in memory")
    deadline = number(get("deadline"))
    if deadline is not None and not ended(status):
        left = format_duration(max(0, round(deadline - facts.now)))
        source = f" ({get('deadline_from')})" if get("deadline_from") else ""
        found.append(f"the deadline{source} is at {when(deadline)}, in {left}")
    if get("exclusion") not in (None, "", "flock"):
        found.append(f"exclusion: {get('exclusion')}")
    audit = get("audit")
    if audit and "all equal" not in str(audit):
        found.append(f"replay: {audit}")
    warnings = get("warnings")
    if isinstance(warnings, (list, tuple)):
        found.extend(str(text) for text in warnings)
    found.extend(facts.proof)
    if facts.log_bytes >= LARGE_LOG:
        found.append(
            f"the logs take {format_size(facts.log_bytes)}; "
            "logs: {max_bytes: …} in the job file frees the middle of long ones"
        )
    return tuple(found)


def _held(reason: str) -> str:
    cure = "" if "--release" in reason else '; "outlast release RUN" lifts it'
    return f"held: {reason}{cure}"


def _details(path: str, status: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    get = status.get
    counters = get("counters")
    save = get("last_save")
    pairs = [
        ("run", path),
        ("reason", str(get("reason") or "")),
        ("attempt", _attempt(status)),
        ("ends", _counts(counters) if isinstance(counters, Mapping) else ""),
        ("last save", _save(save) if isinstance(save, Mapping) else ""),
        ("cadence", _cadence(get("cadence"))),
        ("verified", str(get("verified") or "")),
        ("replay", str(get("audit") or "")),
        ("supervisor", f"{get('supervisor')} on {get('host')}" if get("supervisor") else ""),
        ("scheduler", str(get("scheduler") or "")),
        ("requeue", str(get("requeue") or "")),
        ("exclusion", str(get("exclusion") or "")),
        ("standby", _standby(get("standby"))),
        ("log", str(get("log") or "")),
        ("as of", when(get("as_of"))),
    ]
    return tuple((name, text) for name, text in pairs if text)


def _attempt(status: Mapping[str, Any]) -> str:
    if not status.get("attempt"):
        return ""
    restored = status.get("restored")
    return f"{status['attempt']}" + (f", from {restored}" if restored else ", from the beginning")


def _counts(counters: Mapping[str, Any]) -> str:
    names = {
        "preempted": "preempted",
        "crashed_progress": "crashed with progress",
        "crashed": "crashed without",
        "hung": "hung",
    }
    return ", ".join(f"{counters[key]} {name}" for key, name in names.items() if counters.get(key))


def _standby(standby: object) -> str:
    if not isinstance(standby, Mapping):
        return ""
    text = f"{standby.get('state')}, process {standby.get('pid')}"
    own = number(standby.get("uss"))
    return text if own is None else f"{text}, {format_size(int(own))} of memory that only it has"


def _save(save: Mapping[str, Any]) -> str:
    text = str(save.get("generation") or f"step {save.get('step')}")
    if save.get("at") is not None:
        text += f" at {when(save.get('at'))}"
    seconds = number(save.get("seconds"))
    return text if seconds is None else f"{text}, took {format_duration(seconds)}"


def _cadence(found: object) -> str:
    """The automatic cadence and its reason."""
    seconds = number(found.get("seconds")) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or seconds is None:
        return ""
    return f"every {format_duration(seconds)}: {found.get('reason')}"


def _without_snapshot(path: str, facts: Facts) -> Row:
    """A run whose status.json is missing or damaged: what its journal says."""
    state = "done" if facts.done else "held" if facts.held else "unknown"
    note = "no status.json that can be read; from the journal" if facts.attempts or facts.held else ""
    notes = [note] if note else ["has not been run, or its status.json cannot be read"]
    if facts.held:
        notes.append(_held(facts.held))
    level = "good" if facts.done else "bad"
    return Row(("", path, state, "", "", "", "", ""), tuple(notes), (("run", path),), level)


def plain(rows: Sequence[Row], *, detailed: bool = False) -> list[str]:
    """The table as lines of text, for pipes and files."""
    table = [HEADINGS, *(item.cells for item in rows)]
    used = [i for i in range(len(HEADINGS)) if any(line[i] for line in table[1:])]
    widths = {i: max(len(line[i]) for line in table) for i in used}
    lines: list[str] = []
    for place, cells in enumerate(table):
        lines.append("  ".join((cells[i] or "-").ljust(widths[i]) for i in used).rstrip())
        if place:
            lines.extend(f"  ! {note}" for note in rows[place - 1].notes)
            if detailed:
                lines.extend(f"  {name:<10} {text}" for name, text in rows[place - 1].details)
    return lines
