"""The unit by which systemd starts a job, and starts it again until it is done. Pure: text from facts.

The formats are those of systemd.unit(5), systemd.service(5), systemd.kill(5) and systemd.syntax(7).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outlast_jobs.contract import ExitCode
from outlast_jobs.jobfile import Job

from ..rules_live import KILL_AFTER
from ..sdnotify import LAST_ACTS

MARK = "# written by outlast systemd"
"""The first line of every unit of ours: files without it are not touched."""
USER_STOP_LIMIT = 120.0
"""Seconds that a user's service manager has at a shutdown for all that it runs (user@.service)."""
CARRIED = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables of the caller that the unit keeps: a service manager has none of them, or others."""

START_SECONDS = 300
"""Seconds until READY: a dead host's lease on a network file system is waited for."""

_WATCHDOG = 60  # seconds without a turn of the loop: it never waits for anything, but the machine may be slow
_AGAIN = 10  # seconds until the next start, also while another supervisor has the run
_LONGEST = 200  # characters of a unit's name; UNIT_NAME_MAX is 255, and drop-ins add to it
_PLAIN = re.compile(r"[A-Za-z0-9_@=:,./+-]+")
_NAMED = re.compile(r"[A-Za-z0-9:_.\\-]+")


@dataclass(frozen=True)
class Unit:
    """What a unit is made of. ``command`` starts the job; ``user`` is for system units, empty for root."""

    job: Job
    command: Sequence[str]
    system: bool = False
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def unit_name(job_name: str) -> str:
    """The name of a job's unit. What a unit's name cannot hold is escaped as systemd-escape(1) does."""
    escaped = "".join(
        chr(byte) if _NAMED.fullmatch(chr(byte)) and byte != ord("\\") else f"\\x{byte:02x}"
        for byte in job_name.encode()
    )
    if len(escaped) > _LONGEST:
        escaped = f"{escaped[: _LONGEST - 17]}-{hashlib.sha256(job_name.encode()).hexdigest()[:16]}"
    return f"outlast-{escaped}.service"


def check_name(name: str) -> str:
    """A unit's name as a person gave it, with its suffix; ValueError where systemd would refuse it."""
    stem = name.removesuffix(".service")
    if not _NAMED.fullmatch(stem) or len(stem) > _LONGEST:
        raise ValueError(
            f'"{name}" is no name of a unit: take letters, digits and ":-_.", {_LONGEST} at most'
        )
    return f"{stem}.service"


def stop_seconds(grace: float) -> int:
    """How long a stop may take: the job's grace, SIGKILL, and the last acts."""
    return math.ceil(grace + KILL_AFTER + LAST_ACTS)


def unit_text(unit: Unit) -> str:
    """The unit; ValueError where a word cannot be written into one."""
    job, stop = unit.job, unit.job.signals.stop
    lines = [
        f"{MARK}: changes are lost at the next --install, so put them into a drop-in (systemctl edit)",
        "[Unit]",
        f"Description=training {_shown(job.name)} (outlast)",
        # outlast counts what fails and holds the run; what is left to systemd passes, however often
        "StartLimitIntervalSec=0",
        *(_after(unit) if unit.system else ()),
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        *([f"User={unit.user}"] if unit.user else ()),
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in unit.environment.items()),
        f"ExecStart={_command(unit.command)}",
        # a stop is for the supervisor alone, which tells the worker; and it is waited for
        f"ExecStop={_command((*_SHELL, _stopping(stop)))}",
        *([f"ExecReload={_command((*_SHELL, _RELOAD))}"] if _reloads(job) else ()),
        "",
        "# where the supervisor dies or hangs, all that is left saves on this signal before it is killed",
        "KillMode=control-group",
        f"KillSignal={stop}",
        f"WatchdogSignal={stop}",
        f"WatchdogSec={_WATCHDOG}",
        f"TimeoutStartSec={START_SECONDS}",
        f"TimeoutStopSec={stop_seconds(job.stop.grace)}",
        "# a worker that is killed for its memory is started again, by the supervisor",
        "OOMPolicy=continue",
        "",
        "# 0 done; 75 saved, run me again; the others need a person",
        "Restart=on-failure",
        f"RestartSec={_AGAIN}",
        f"SuccessExitStatus={ExitCode.SAVED:d}",
        # SIGTERM and its like end a supervisor that has not got its handlers yet, which counts as success
        f"RestartForceExitStatus={ExitCode.SAVED:d} SIGTERM SIGINT SIGHUP",
        f"RestartPreventExitStatus={_codes(*_FINAL)}",
        "SyslogIdentifier=outlast",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if unit.system else 'default.target'}",
        "",
        "[X-Outlast]",
        f"Job={job_line(job)}",
        "",
    ]
    return "\n".join(lines)


def job_line(job: Job) -> str:
    """A job as it stands in its unit."""
    return _quoted(job.source or "")


def job_of(text: str) -> str | None:
    """Which job a unit of ours is for, as it stands there; None for a unit that is not ours."""
    if not text.startswith(MARK):
        return None
    found = re.search(r"^Job=(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


_FINAL = (ExitCode.USAGE, ExitCode.UNUSABLE, ExitCode.HELD, ExitCode.CANNOT_WRITE)
_SHELL = ("/bin/sh", "-c")
_RELOAD = 'kill -s HUP "$MAINPID"'


def _stopping(signal_name: str) -> str:
    # also run after the supervisor ended by itself, and then there is no MAINPID
    ask = f'kill -s {signal_name.removeprefix("SIG")} "$MAINPID"'
    wait = 'while kill -0 "$MAINPID"; do sleep 0.1; done'
    return f'test -z "$MAINPID" || {{ {ask}; {wait}; }} 2>/dev/null'


def _reloads(job: Job) -> bool:
    """Whether SIGHUP means to read the job file again; the job file may give it another meaning."""
    return "SIGHUP" not in (job.signals.save, job.signals.stop, job.signals.stacks)


def _after(unit: Unit) -> tuple[str, ...]:
    """At boot: not before the files are there, and the network, where there is one."""
    job = unit.job
    paths = dict.fromkeys(path for path in (job.source, job.workdir, job.run_dir, unit.command[0]) if path)
    # no escapes are known there
    mounts = " ".join(_quoted(path) for path in paths if path.isprintable())
    return (
        "Wants=network-online.target",
        "After=network-online.target remote-fs.target nss-user-lookup.target time-sync.target",
        *([f"RequiresMountsFor={mounts}"] if mounts else ()),
    )


def _codes(*codes: ExitCode) -> str:
    return " ".join(str(int(code)) for code in codes)


def _command(words: Sequence[str]) -> str:
    # Variables are expanded in arguments, and `$$` is a dollar; not so in the program's path. `:` turns that off.
    if "$" in words[0]:
        return " ".join([f":{_quoted(words[0])}", *map(_quoted, words[1:])])
    return " ".join(_quoted(word).replace("$", "$$") for word in words)


def _quoted(word: str) -> str:
    """A word between double quotes, with C's escapes and without specifiers; a plain one stands as it is."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"a unit can't hold {word!r}: its text must be valid UTF-8; rename what is named so"
        ) from None
    if _PLAIN.fullmatch(word):
        return word
    return f'"{"".join(map(_escaped, word))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character == "%":
        return "%%"
    if character < " " or character == "\x7f":
        return f"\\x{ord(character):02x}"
    return character


def _shown(text: str) -> str:
    return text.replace("%", "%%")
