"""`outlast save|stop|release|restart|reload|pin`: ask a run's supervisor, wherever it is, and wait for its answer."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from outlast_jobs import events
from outlast_jobs.identity import hostname
from outlast_jobs.locks import read_holder
from outlast_jobs.requests import write_request
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.commands.shared import (
    ABOUT_RUN,
    ASK_CODES,
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    tells_waits,
    usage_errors,
)
from outlast_supervisor.ledger import answer_to, held_lock, history_of, journal_end, record
from outlast_supervisor.living import is_supervised
from outlast_supervisor.pins import is_generation, no_generation, pinned, unpinned
from outlast_supervisor.targets import find_run

_LOOK = 0.1  # seconds between two looks for the answer
_WAIT = 120.0  # seconds: a boundary and a save, and a network file system on the way
_Command = Callable[..., Any]


def _asking(command: _Command) -> click.Command:
    """A command that asks one run for something."""
    command = usage_errors(tells_waits(command))
    command = json_option(quiet_option(command))
    command = click.option(
        "--wait", type=click.FloatRange(0), default=_WAIT, show_default=True, help="Seconds to wait."
    )(command)
    return click.command(epilog=ABOUT_RUN + ASK_CODES)(command)


_RUN = click.argument("run", required=False)


def _save(run: str | None, **how: Any) -> int:
    """Ask a run to save at the next boundary and go on."""
    return _ask(find_run(run), "save", {}, **how)


def _stop(run: str | None, **how: Any) -> int:
    """Save and stop a run, and hold it: nothing starts it again until a person releases it.

    Works without a supervisor too: the run is held, and the next start does nothing.
    """
    found = find_run(run)
    if not is_supervised(found, found.read_status(), may_write=True):
        text = _hold(found)
        if text is not None:
            return _told("", True, text, how["quiet"], how["as_json"])
    return _ask(found, "stop", {}, **how)


def _release(run: str | None, **how: Any) -> int:
    """Lift a hold, and start nothing: the next start goes on, whoever makes it."""
    return _told("", *_lift(find_run(run)), how["quiet"], how["as_json"])


def _restart(run: str | None, **how: Any) -> int:
    """Save, end this attempt, and start a new one."""
    return _ask(find_run(run), "restart", {}, **how)


def _reload(run: str | None, **how: Any) -> int:
    """Have the job file read again; what cannot change in a running attempt holds from the next one on."""
    return _ask(find_run(run), "reload", {}, **how)


def _pin(run: str | None, generation: str | None, remove: bool, **how: Any) -> int:
    """Keep a generation, by default the newest verified one, whatever the policy says.

    With --remove the default is the one that is pinned.

    Works without a supervisor too: the next one keeps it.
    """
    found = find_run(run)
    status = found.read_status()
    name = generation or (_only_pin(found) if remove else (status or {}).get("verified"))
    if not name:
        from outlast_supervisor.namesake import former_job  # here: YAML takes some milliseconds

        if (job := former_job(found)) is not None and job.adopt is not None:
            raise Failed(
                f"what matches {job.adopt.pattern!r} is kept or deleted by the script alone; copy what has to stay"
            )
        raise Failed(f'no verified generation in "{found.path}" yet; name one')
    if not is_supervised(found, status, may_write=True):
        text = _pin_alone(found, str(name), remove)
        if text is not None:
            return _told("", True, text, how["quiet"], how["as_json"])
    return _ask(found, "unpin" if remove else "pin", {"generation": str(name)}, **how)


save = _asking(_RUN(_save))
stop = _asking(_RUN(_stop))
release = _asking(_RUN(_release))
restart = _asking(_RUN(_restart))
reload = _asking(_RUN(_reload))
pin = _asking(
    _RUN(
        click.argument("generation", required=False)(
            click.option("--remove", is_flag=True, help="Take the pin away.")(_pin)
        )
    )
)


def _only_pin(run: RunDirectory) -> str:
    pins = sorted(history_of(run).pins)
    if len(pins) != 1:
        raise Failed(f'name the one whose pin is to go; pinned in "{run.path}": {", ".join(pins) or "none"}')
    return pins[0]


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{hostname()}"


def _ask(
    run: RunDirectory, verb: str, args: Mapping[str, Any], *, wait: float, quiet: bool, as_json: bool
) -> int:
    if not is_supervised(run, run.read_status(), may_write=True):
        raise Failed(
            f'cannot {verb} "{run.path}": no supervisor has this run; start it with "outlast run"', 1
        )
    try:
        since = journal_end(run)
        request = write_request(run, verb, args, _who())
    except OSError as error:
        # a full disk takes no request, and is a reason to end what fills it
        end = (
            f", or have {holder} save and end with SIGTERM"
            if verb == "stop" and (holder := _holder(run))
            else ""
        )
        raise _cannot(f'ask for {verb} in "{run.requests}"', error, end) from error
    answer = _wait(run, request, wait, since)
    if answer is None:
        if as_json:
            print_json({"id": request, "ok": None, "text": "not answered in time"})
        elif not quiet:
            say(f'outlast: asked "{run.path}" to {verb}, not answered in {wait:g} s; the request stands')
        return 2
    return _told(request, *answer, quiet, as_json)


def _cannot(what: str, error: OSError, more: str = "") -> Failed:
    return Failed(f"cannot {what}: {error.strerror or error}; make room or give access{more}", 73)


def _holder(run: RunDirectory) -> str:
    holder = read_holder(run)
    return f"process {holder.identity.pid} on {holder.host}" if holder is not None else ""


def _wait(
    run: RunDirectory, request: str, seconds: float, since: Mapping[str, int]
) -> tuple[bool, str] | None:
    deadline = time.monotonic() + seconds
    while True:
        # The request goes when it is answered; until then the journal need not be read.
        if not (run.requests / f"{request}.json").exists() and (answer := answer_to(run, request, since)):
            return answer
        if time.monotonic() >= deadline:
            return answer_to(run, request, since) or answer_to(run, request)
        time.sleep(_LOOK)


def _told(request: str, ok: bool, text: str, quiet: bool, as_json: bool) -> int:
    if as_json:
        print_json({"id": request, "ok": ok, "text": text})
    elif not ok:
        raise Failed(text or "refused", 1)
    elif not quiet:
        print(text or "done")
    return 0 if ok else 1


def _hold(run: RunDirectory) -> str | None:
    """Hold a run that nobody supervises; None where somebody took it meanwhile, who is to be asked."""
    try:
        with held_lock(run) as busy:
            if busy is not None:
                return None
            known = history_of(run)
            if known.done is not None:
                return "the run is already complete; nothing to stop"
            if known.held is not None:
                return f"already held: {known.held.reason}"
            data = {
                "by": _who(),
                "reason": f"stopped by {_who()}",
                "job_digest": known.job_digest,
                "code_digest": known.code_digest,
            }
            record(run, (events.HELD, data))
            _show(run, state="held", held=str(data["reason"]))
    except OSError as error:
        raise _cannot(f'hold "{run.path}"', error) from error
    return 'no supervisor was running; the run is held, "outlast release RUN" lifts it'


def _lift(run: RunDirectory) -> tuple[bool, str]:
    """Record a release, as a start with --release would."""
    try:
        with held_lock(run) as busy:
            if busy is not None:
                return False, f"not released: {busy.text}"
            if history_of(run).held is None:
                return True, "the run is not held"
            record(run, (events.RELEASED, {"by": _who(), "why": "outlast release"}))
            _show(run, state="finished", held=None, reason=f"released by {_who()}")
    except OSError as error:
        raise _cannot(f'release "{run.path}"', error) from error
    return True, "released; the next start goes on (outlast daemon starts it when its job file is touched)"


def _pin_alone(run: RunDirectory, name: str, remove: bool) -> str | None:
    """Pin in a run that nobody supervises; None where somebody took it meanwhile, who is to be asked."""
    try:
        with held_lock(run) as busy:
            if busy is not None:
                return None
            if not is_generation(run, name):
                raise Failed(no_generation(name), 1)
            record(run, (events.UNPINNED if remove else events.PINNED, {"generation": name}))
    except OSError as error:
        raise _cannot(f'pin in "{run.path}"', error) from error
    return unpinned(name) if remove else pinned(name)


def _show(run: RunDirectory, **changes: str | None) -> None:
    status = run.read_status()
    if status is not None:
        # the journal has just been written, whatever its last supervisor could not write there
        told = {"unjournaled": False, "warnings": [], "as_of": time.time()}
        run.write_status({**status, **changes, **told})
