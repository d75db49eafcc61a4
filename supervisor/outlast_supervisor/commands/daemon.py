"""`outlast daemon` and `outlast drain`: many jobs of one folder, and their orderly end."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast_supervisor.commands.shared import (
    Failed,
    json_option,
    print_json,
    quiet_option,
    say,
    usage_errors,
)

if TYPE_CHECKING:
    from outlast_supervisor.daemon.books import Places

_DAEMON_CODES = """\b
Signals:
  TERM, INT, QUIT   the daemon ends, trainings go on; the next one takes them up
                    (as the first process of a container it has all save and stop first)
  HUP, USR1         look at the folder now (HUP of a terminal ends the daemon)

\b
Exit codes:
  0    ended by a signal; no training ends with it
  64   bad usage, or no such folder
  69   another daemon has the folder
  73   the folder cannot be written
  75   ended by a signal, as the first process of a container; run it again
"""

_DRAIN_CODES = """\b
Exit codes:
  0    nothing runs any more, or, with --resume, jobs may start again
  2    asked, and something still runs
  64   bad usage, or no such folder
  73   the folder cannot be written
"""

_LOOK = 0.1  # seconds between two looks whether everything has stopped
_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))


def _slots(ctx: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",")) if text else ()
    if "" in found:
        raise click.BadParameter("expected names such as gpu:0,gpu:1, got an empty one", ctx, option)
    if twice := {word for word in found if found.count(word) > 1}:
        raise click.BadParameter(f'"{min(twice)}" is named twice', ctx, option)
    return found


@click.command(epilog=_DAEMON_CODES)
@_FOLDER
@click.option("--max-running", type=click.IntRange(1), help="So many jobs at a time; by default all.")
@click.option(
    "--slots",
    default="",
    metavar="NAMES",
    callback=_slots,
    help="Names such as gpu:0,gpu:1, of which each job takes one, or as many as its file says; "
    "those of GPUs go to CUDA_VISIBLE_DEVICES.",
)
@click.option(
    "--rescan",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two looks at the folder though nothing was told.",
)
@quiet_option
@json_option
@usage_errors
def daemon(
    folder: str, max_running: int | None, slots: tuple[str, ...], rescan: float, quiet: bool, as_json: bool
) -> int:
    """Supervise every job file in a folder, steered by adding, changing and removing files.

    A new *.yaml or *.yml starts, a changed one is read again, a removed one saves and stops. Each job has a supervisor
    process of its own, which goes on when the daemon ends, however that happens: the next daemon takes it up. Use
    "outlast drain DIR" to stop everything. What a supervisor says is in DIR/.outlast/logs.
    """
    from outlast_jobs.locks import Busy, RunLock
    from outlast_supervisor import early, linux
    from outlast_supervisor.daemon.books import Places
    from outlast_supervisor.daemon.keeper import Keeper
    from outlast_supervisor.daemon.model import Limits
    from outlast_supervisor.daemon.telling import Teller
    from outlast_supervisor.helper import NoThread

    path = Path(os.path.realpath(folder))
    lock = RunLock(Places(path).lockable)
    try:
        taken = lock.acquire()
        if isinstance(taken, Busy) and taken.free_in is not None and early.wait(taken.free_in + 1.0):
            taken = lock.acquire()  # the lease of a host that died is free after a while
    except OSError as error:
        raise Failed(f'cannot write in "{folder}": {error.strerror or error}', 73) from error
    if isinstance(taken, Busy):
        who = f": {taken.who}" if taken.who else ""
        raise Failed(f'another daemon has "{folder}"{who}; only one can', 69)
    os.chdir(path)  # where the run directories of shipped jobs begin
    try:
        limits = Limits(max_running, slots)
        with contextlib.closing(Teller(quiet=quiet, as_json=as_json)) as tell:
            return Keeper(path, lock, limits, rescan, tell, terminal=linux.has_terminal()).run()
    except NoThread as error:
        raise Failed(str(error.strerror), 73) from error
    finally:
        lock.release()


@click.command(epilog=_DRAIN_CODES)
@_FOLDER
@click.option("--resume", is_flag=True, help="Let jobs start again.")
@click.option("--wait", type=click.FloatRange(0), default=300.0, show_default=True, help="Seconds to wait.")
@quiet_option
@json_option
@usage_errors
def drain(folder: str, resume: bool, wait: float, quiet: bool, as_json: bool) -> int:
    """Have everything in a daemon's folder save and stop; nothing starts there until it is resumed.

    Works without a daemon too, for what an earlier one left running on this host.
    """
    from outlast_supervisor.daemon.books import Places

    path = Path(os.path.realpath(folder))
    places = Places(path)
    try:
        _mark(places, not resume)
    except OSError as error:
        raise Failed(f'cannot write in "{folder}": {error.strerror or error}', 73) from error
    there = _poke(places)
    left = [] if resume else _wait(path, places, wait, there)
    if as_json:
        print_json({"draining": not resume, "running": left})
    elif left:
        say(f"outlast: {len(left)} still save or run after {wait:g} s: {', '.join(left)}; the request stands")
    elif not quiet:
        print(
            "jobs may start again"
            if resume
            else f'drained: nothing runs; "outlast drain --resume {shlex.quote(folder)}" starts again'
        )
    return 2 if left else 0


def _mark(places: Places, draining: bool) -> None:
    from outlast_jobs import durable

    places.own.mkdir(exist_ok=True)
    if draining:
        durable.replace_file(
            places.drain, b"no job starts in this folder until: outlast drain --resume DIR\n"
        )
    else:
        places.drain.unlink(missing_ok=True)
        durable.fsync_dir(places.own)


def _poke(places: Places) -> bool:
    """Have the daemon look at once; whether there is one that can be seen from here."""
    from outlast_jobs.locks import read_holder
    from outlast_supervisor.processes import send

    holder = read_holder(places.lockable)
    return holder is not None and bool(holder.alive()) and send(holder.identity, signal.SIGUSR1)


def _wait(path: Path, places: Places, seconds: float, daemon: bool) -> list[str]:
    """Wait until nothing runs; the job files of what still does."""
    from outlast_jobs.identity import ProcessIdentity
    from outlast_jobs.locks import lease_heard
    from outlast_supervisor.daemon.books import read_books
    from outlast_supervisor.daemon.supervisors import find
    from outlast_supervisor.processes import send

    told: set[ProcessIdentity] = set()
    deadline = time.monotonic() + seconds
    while True:
        found = find(path)
        if not daemon:
            for process in found.keys() - told:
                send(process, signal.SIGTERM)
                told.add(process)
        books = read_books(places)
        # a daemon of another host says itself when it is done
        afar = not daemon and lease_heard(places.lockable) is not None and books is not None
        waits = (daemon or afar) and (books is None or not books.draining or books.running > 0)
        if not found and not waits:
            return []
        if time.monotonic() >= deadline:
            return sorted(mark.file for mark in found.values()) or ["the daemon"]
        time.sleep(_LOOK)
