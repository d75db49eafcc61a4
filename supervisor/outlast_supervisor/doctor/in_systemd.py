"""As a systemd service: does the unit wait for a save, hear our readiness, and start us again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping

from msgspec import Struct

from outlast_jobs.jobfile import Job
from outlast_jobs.units import UnitError, parse_duration

from .lead import patience
from .line import Line, failure, ok, undecided, warning
from .own import Own

PATIENCE = 10.0  # seconds for systemctl
_ASKED = (
    "Type",
    "NotifyAccess",
    "TimeoutStopUSec",
    "KillMode",
    "ExecStop",
    "Restart",
    "RestartPreventExitStatus",
    "RestartForceExitStatus",
    "SuccessExitStatus",
)
_FORM = "take the unit that this prints: outlast systemd JOB"


class Unit(Struct, frozen=True):
    """A service and its properties, as `systemctl show` gives them; ``trouble`` is why it did not."""

    name: str
    properties: Mapping[str, str] = {}
    trouble: str = ""


def verdict(unit: Unit, job: Job) -> Iterator[Line]:
    """The lines about the unit."""
    if unit.trouble:
        yield undecided("warning", f'"{unit.name}": {unit.trouble}', "look with: systemctl show")
        return
    get = unit.properties.get
    seconds = span(get("TimeoutStopUSec", ""))
    cure = f"TimeoutStopSec={job.stop.grace + 10:.0f} in the unit; {_FORM}"
    what = f'"{unit.name}": SIGTERM, and its time until SIGKILL'
    if seconds is None:
        yield ok("warning", f'"{unit.name}": SIGTERM, and no SIGKILL however long a save takes')
    else:
        yield patience("warning", what, seconds, job, cure)
    if get("KillMode") == "process":
        yield failure(
            "warning", f'"{unit.name}" has KillMode=process: the worker would be left', "KillMode=mixed"
        )
    elif get("KillMode") == "control-group" and not get("ExecStop"):
        yield warning(
            "warning",
            f'"{unit.name}" has KillMode=control-group: SIGTERM goes to every process of the worker too',
            f"KillMode=mixed; {_FORM}",
        )
    if get("Type", "").startswith("notify") and get("NotifyAccess") in ("none", ""):
        yield failure("notify", f'"{unit.name}" waits for readiness and hears nobody', "NotifyAccess=main")
    yield from _again(unit)


def _again(unit: Unit) -> Iterator[Line]:
    get = unit.properties.get
    restart = get("Restart") or "no"
    never, forced = get("RestartPreventExitStatus", "").split(), get("RestartForceExitStatus", "").split()
    # on-failure does not take a code for a failure that the unit calls a success
    wanted = restart == "always" or (
        restart == "on-failure" and "75" not in get("SuccessExitStatus", "").split()
    )
    if "75" in never:
        yield failure(
            "requeue",
            f'"{unit.name}" is not started again after 75',
            "take 75 out of RestartPreventExitStatus",
        )
    elif not wanted and "75" not in forced:
        yield failure(
            "requeue",
            f'"{unit.name}" has Restart={restart}: 75 starts nothing',
            f"Restart=on-failure, RestartForceExitStatus=75; {_FORM}",
        )
    elif "70" not in never:
        yield warning(
            "requeue",
            f'"{unit.name}" is started again after 70: a held run for ever',
            "RestartPreventExitStatus=70",
        )
    else:
        yield ok("requeue", f'"{unit.name}": Restart={restart}, and not after {" ".join(never)}')


def span(text: str) -> float | None:
    """Seconds of a time span as systemd shows it ("1min 30s"); None for infinity and what cannot be read."""
    words = text.replace("min", "m").replace("us", "").split()
    try:
        return float(sum(parse_duration(word) for word in words)) if words else None
    except UnitError:
        return None


def unit_of(own: Own) -> str:
    """The service that we belong to, from our cgroup; empty for none, or where that is a user's manager."""
    for line in own.cgroup.splitlines():
        names = re.findall(r"[^/]+\.service(?=/|$)", line.split(":", 2)[-1])
        if names and not names[-1].startswith("user@"):
            return str(names[-1])
    return ""


def look(own: Own) -> Unit:
    """Ask the manager that started us."""
    name = unit_of(own)
    user = ["--user"] if own.env.get("MANAGERPID") else []
    words = ["systemctl", *user, "show", name, f"--property={','.join(_ASKED)}"]
    try:
        done = subprocess.run(
            words,
            env=dict(own.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        return Unit(name, trouble="systemctl is not in PATH")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unit(name, trouble=f"systemctl gives no answer: {error}")
    if done.returncode:
        return Unit(name, trouble=done.stderr.decode(errors="replace").strip()[:200])
    pairs = (line.partition("=") for line in done.stdout.decode(errors="replace").splitlines())
    return Unit(name, {key: value for key, _, value in pairs})
