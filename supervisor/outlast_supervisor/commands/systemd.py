"""`outlast systemd`: print, install or remove the unit by which systemd starts a job."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from pathlib import Path

import click

from outlast_jobs import durable
from outlast_jobs.catalog import is_shipped
from outlast_jobs.jobfile import Job, load_job, resolve_job
from outlast_supervisor.commands.run import TakesRest, rest_of
from outlast_supervisor.commands.shared import (
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)
from outlast_supervisor.schedulers import systemd as text
from outlast_supervisor.schedulers.start import start_command

SYSTEMD_CODES = """\b
Exit codes:
  0    printed, installed or removed
  1    systemctl refused
  64   bad usage or job file
  73   the unit cannot be written or removed
"""
_SYSTEM = Path("/etc/systemd/system")
_LINGER = Path("/var/lib/systemd/linger")
_PATIENCE = 60.0  # seconds for systemctl beyond the time that a stop may take


@click.command(cls=TakesRest, epilog=SYSTEMD_CODES, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB [-- ARGUMENTS...]")
@click.option(
    "--run-dir", type=click.Path(file_okay=False), help="Where the run lies; else the job file says."
)
@click.option("--system", is_flag=True, help="A system unit, and not one of your own.")
@click.option("--as", "owner", metavar="NAME", help="Who runs a system unit; else the job file's owner.")
@click.option("--name", metavar="UNIT", help="The unit's name (outlast-NAME, after the job).")
@click.option("--install", is_flag=True, help="Put the unit in place and enable it.")
@click.option("--now", is_flag=True, help="With --install: start it, too.")
@click.option("--remove", is_flag=True, help="Save and stop it, and take the unit away.")
@quiet_option
@json_option
@click.pass_context
@usage_errors
def systemd(
    ctx: click.Context,
    /,
    job: str,
    run_dir: str | None,
    system: bool,
    owner: str | None,
    name: str | None,
    install: bool,
    now: bool,
    remove: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Print the systemd unit of a job, or put it in place.

    systemd then starts the job at boot and after each interruption, until it is done.
    """
    if install and remove:
        raise click.UsageError("--install and --remove exclude each other", ctx)
    if now and not install:
        raise click.UsageError("--now goes with --install", ctx)
    if owner and not system:
        raise click.UsageError("--as goes with --system: a unit of your own runs as you", ctx)
    extra = rest_of(ctx)
    asked = load_job(resolve_job(job), run_dir=run_dir, extra=extra)
    place = _Place(text.check_name(name) if name else text.unit_name(asked.name), system)
    if remove:
        return _told(place, asked, place.remove(asked), None, quiet, as_json)
    whole = text.unit_text(
        text.Unit(
            job=asked,
            # a shipped job's run lies in the folder where one is, and the unit is in none
            command=start_command(
                asked, run_dir=asked.run_dir if run_dir or is_shipped(asked.source) else None, extra=extra
            ),
            system=system,
            user=_owner(asked, owner) if system else "",
            environment={key: os.environ[key] for key in text.CARRIED if os.environ.get(key)},
        )
    )
    _warn(asked, system)
    if not install:
        if as_json:
            print_json({"unit": place.unit, "path": str(place.path), "text": whole})
        else:
            print(whole, end="")
        return 0
    return _told(place, asked, place.install(asked, whole, now=now), whole, quiet, as_json)


class _Place:
    """Where a unit belongs, and the systemctl that answers for it."""

    def __init__(self, unit: str, system: bool) -> None:
        self.unit, self.system = unit, system
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        if home.startswith("~") and not system:  # or a folder of that name would be made here
            raise Failed("cannot tell where units belong: HOME is not set and this user has none; set HOME")
        self.path = (_SYSTEM if system else Path(home, "systemd", "user")) / unit

    @property
    def systemctl(self) -> tuple[str, ...]:
        return ("systemctl",) if self.system else ("systemctl", "--user")

    def install(self, job: Job, whole: str, *, now: bool) -> str:
        before = self._before(job)
        if before != whole:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                durable.replace_file(self.path, whole.encode())
            except OSError as error:
                raise Failed(f'cannot write "{self.path}": {error.strerror or error}', 73) from error
        try:
            self._ask("daemon-reload")
            self._ask(
                "enable", *(["--now"] if now else []), self.unit, seconds=_PATIENCE + text.START_SECONDS
            )
        except Failed as failed:
            left = f'"{self.path}" is there all the same; --remove takes it away'
            raise Failed(f"{failed}; {left}", failed.code) from failed
        what = "is installed already" if before == whole else "installed" if before is None else "renewed"
        return f"{what}{' and started' if now else ''}"

    def remove(self, job: Job) -> str:
        if self._before(job) is None:
            return "is not installed"
        try:
            self._ask(
                "disable", "--now", self.unit, seconds=_PATIENCE + text.stop_seconds(job.stop.grace) * 2
            )
        except Failed as failed:
            raise Failed(f'{failed}; nothing is removed: "{self.path}"', failed.code) from failed
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise Failed(f'cannot remove "{self.path}": {error.strerror or error}', 73) from error
        self._ask("daemon-reload")
        return "removed; the run stays where it is"

    def _before(self, job: Job) -> str | None:
        """The unit that is there, if it is this job's; None where there is none."""
        try:
            found = durable.read_file(self.path, 1 << 20).decode(errors="replace")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Failed(f'cannot read "{self.path}": {error}; choose another name with --name') from error
        owner = text.job_of(found)
        if owner is None:
            raise Failed(f'"{self.path}" was not written by outlast; choose another name with --name')
        if owner != text.job_line(job):
            taken_away = shlex.join([*self.systemctl, "disable", "--now", self.unit])
            raise Failed(
                f'"{self.path}" is the unit of {owner}; choose another name with --name, or, where that job has '
                f"moved or is gone: {taken_away}; rm {shlex.quote(str(self.path))}"
            )
        return found

    def _ask(self, *words: str, seconds: float = _PATIENCE) -> None:
        command = [*self.systemctl, *words]
        shown = " ".join(command)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except FileNotFoundError:
            raise Failed(f'cannot run "{shown}": there is no systemctl here', 1) from None
        except subprocess.TimeoutExpired:
            raise Failed(f'"{shown}" did not end in {seconds:.0f} s', 1) from None
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            cure = "" if self.system else "; a unit of one's own needs one's own login, not su or sudo"
            raise Failed(f'"{shown}" failed: {said}{cure if "bus" in said else ""}', 1)


def _owner(job: Job, asked: str | None) -> str:
    """Who runs a system unit: never root by accident."""
    if asked is not None:
        try:
            pwd.getpwnam(asked)
        except KeyError:
            raise Failed(f'there is no user "{asked}" here') from None
        return "" if asked == "root" else asked
    uid = os.stat(job.source or "/").st_uid
    if uid == 0 or is_shipped(job.source):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _warn(job: Job, system: bool) -> None:
    seconds = text.stop_seconds(job.stop.grace)
    if not system and seconds > text.USER_STOP_LIMIT:
        say(
            f"outlast: warning: a stop may take {seconds} s, and at a shutdown a user's units have "
            f"{text.USER_STOP_LIMIT:.0f} s in all; shorten stop.grace, or use --system"
        )


def _told(place: _Place, job: Job, what: str, whole: str | None, quiet: bool, as_json: bool) -> int:
    if as_json:
        print_json({"unit": place.unit, "path": str(place.path), "text": whole, "what": what})
        return 0
    if quiet:
        return 0
    print(f"{place.unit} {what}")
    if whole is None:
        return 0
    print(f"follow: outlast logs -f {shlex.quote(job.run_dir)}")
    print(f"stop:   {' '.join(place.systemctl)} stop {shlex.quote(place.unit)}")
    if not place.system and not (_LINGER / _me()).exists() and shutil.which("loginctl"):
        say(
            "outlast: it ends with your last login, and starts with the next; for always: loginctl enable-linger"
        )
    return 0


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
