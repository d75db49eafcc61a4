"""What others ask of a running supervisor, by signal or by request, and what it means."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast_jobs import events as journal
from outlast_jobs.jobfile import Job, JobFileError, load_job
from outlast_jobs.requests import Request, remove_request

from . import early, linux, pins, processes
from . import events as ev
from .carry import Carrier
from .launch import Launcher, policy_of
from .loop import Loop
from .sdnotify import ServiceManager
from .startup import digests_of, write_job

SIGNALS = (*early.HEEDED, signal.SIGTSTP, signal.SIGCONT)


class Asks:
    """Gives signals and requests their meaning; what follows is decided by the state table."""

    def __init__(
        self,
        loop: Loop,
        carrier: Carrier,
        launcher: Launcher,
        digests: dict[str, str],
        manager: ServiceManager,
        answered: Collection[str],
    ) -> None:
        self._loop, self._carrier, self._launcher = loop, carrier, launcher
        self._manager = manager
        self.digests = digests
        self._seen: set[str] = set()
        self._answered = frozenset(answered)  # in earlier lives
        self._interrupts = 0
        self._terminal = linux.has_terminal()
        self.on_adopted: Callable[[Job], None] = lambda job: None
        self.on_warned: Callable[[str], None] = lambda source: loop.post(ev.Warned(source))

    # -- signals -------------------------------------------------------------------------------------------

    def numbers(self) -> set[int]:
        """The signals to listen to."""
        signals = self._launcher.job.signals
        named = {signal.Signals[name].value for name in (signals.save, signals.stop, signals.stacks)}
        return (named | {s.value for s in SIGNALS}) - {s.value for s in early.ignored()}

    def signal(self, number: int) -> None:
        """A signal came. What the job file says of it counts before what it means by itself."""
        name = signal.Signals(number).name
        signals = self._launcher.signals or self._launcher.job.signals
        if number == signal.SIGINT:
            self._interrupts += 1
            self._loop.post(ev.Notice(name) if self._interrupts == 1 else ev.StopNow(f"a second {name}"))
        elif name == signals.stop:
            self._loop.post(ev.Notice(name))
        elif name == signals.save:
            self.on_warned(name)
        elif name == signals.stacks:
            self._carrier.signal_trainers("stacks")
        elif number == signal.SIGTSTP:
            self._stand_still()
        elif number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGXCPU):
            self._loop.post(ev.Notice(name))
        elif number == signal.SIGUSR1:
            self.on_warned(name)
        elif number == signal.SIGHUP:
            self._loop.post(ev.Notice(name)) if self._terminal else self._reload(name, "")

    def _stand_still(self) -> None:
        """The terminal asks to stop: the worker stops with us, and no watchdog counts the time."""
        left = self._carrier.own()
        for process in left.all:
            processes.send(process, signal.SIGSTOP)
        self._manager.stand_still()
        before = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._manager.go_on()
        for process in left.all:
            processes.send(process, signal.SIGCONT)
        seconds = time.monotonic() - before
        self._carrier.journaler.stood_still(seconds)
        self._carrier.note(journal.PAUSED, {"seconds": round(seconds, 3)})
        self._loop.post(ev.Paused(seconds))

    # -- requests ------------------------------------------------------------------------------------------

    def take(self, found: Any) -> None:
        """What lay in the requests folder at the latest look."""
        for request in found:
            if request.id not in self._seen:
                self._seen.add(request.id)
                if request.id in self._answered:  # and not taken away before the power went, say
                    self._take_away(request.id)
                    continue
                data = {"id": request.id, "verb": request.verb, "by": request.by}
                self._carrier.note(journal.REQUEST, data)
                self._request(request)

    def _take_away(self, request: str) -> None:
        run = self._carrier.desk.run
        self._carrier.chores.submit("quiet", lambda: remove_request(run, request))

    def _request(self, request: Request) -> None:
        match request.verb:
            case "save":
                self._loop.post(ev.SaveAsked(request.by, request.id))
            case "stop":
                self._loop.post(ev.StopAsked(request.by, request.id))
            case "restart":
                self._loop.post(ev.RestartAsked(request.by, request.id))
            case "reload":
                self._reload(request.by, request.id)
            case "pin" | "unpin":
                self._pin(request)
            case _:
                self._carrier.answer(request.id, False, f'nothing is known to do for "{request.verb}"')

    def _pin(self, request: Request) -> None:
        state, desk = self._loop.state, self._carrier.desk
        name = str(request.args.get("generation") or (state.ledger.verified if state else ""))
        if request.verb == "pin":
            desk.pinned.add(name)  # before anything may be pruned
        self._carrier.chores.submit("pinned", lambda: (request, name, pins.is_generation(desk.run, name)))

    def pinned(self, found: tuple[Request, str, bool]) -> None:
        """It was looked whether there is a generation of that name."""
        request, name, there = found
        pinned = self._carrier.desk.pinned
        if request.verb == "unpin" or not there:
            pinned.discard(name)
        if not there:
            self._carrier.answer(request.id, False, pins.no_generation(name))
        elif request.verb == "pin":
            self._carrier.note(journal.PINNED, {"generation": name})
            self._carrier.answer(request.id, True, pins.pinned(name))
        else:
            self._carrier.note(journal.UNPINNED, {"generation": name})
            self._carrier.answer(request.id, True, pins.unpinned(name))

    def _reload(self, source: str, request: str) -> None:
        """What only the supervisor decides counts at once, what the worker is told from the next attempt on."""
        old, extra = self._launcher.job, self._launcher.extra
        if old.source is None:
            self._refuse(request, "this run has no job file to read again")
            return
        self._manager.reloading()
        # the job file may lie on a file system that hangs
        self._carrier.chores.submit("reload", lambda: _read_again(old, extra, source, request))

    def reloaded(self, read: Reloaded) -> None:
        """The job file was read again, or could not be."""
        self._manager.reloaded()
        if read.job is None:
            self._refuse(read.request, f"the job file is not taken, the old job stays: {read.error}")
            return
        self._adopt(read.job, read.digests)
        changes = [f"read again for {read.source}"]
        self._carrier.note(journal.JOB_CHANGED, {**self.digests, "changes": changes})
        self._carrier.tell(f"the job file was read again ({read.source})", "info")
        self._carrier.answer(
            read.request, True, "read again; a changed command counts from the next attempt on"
        )
        self._loop.post(ev.Tick())

    def _refuse(self, request: str, why: str) -> None:
        self._carrier.tell(why, "error")
        self._carrier.answer(request, False, why)

    def _adopt(self, fresh: Job, digests: dict[str, str]) -> None:
        self._launcher.job = fresh
        self._loop.policy = policy_of(fresh, self._launcher)
        self._loop.heed(self.numbers())
        self.digests.update(digests)
        self._launcher.config_sha256 = digests["command_digest"]
        desk = self._carrier.desk
        self._carrier.chores.submit("quiet", lambda: write_job(desk.run, fresh))
        self.on_adopted(fresh)


class Reloaded(Struct, frozen=True):
    """What came of reading the job file again."""

    source: str
    request: str
    job: Job | None
    digests: dict[str, str]
    error: str


def _read_again(old: Job, extra: tuple[str, ...], source: str, request: str) -> Reloaded:
    try:
        fresh = load_job(Path(old.source or ""), run_dir=old.run_dir, extra=extra)
        # the place of a run does not change while it runs
        fresh = msgspec.structs.replace(fresh, run_dir=old.run_dir)
        return Reloaded(source, request, fresh, digests_of(fresh), "")
    except (JobFileError, OSError, ValueError, RecursionError) as error:
        return Reloaded(source, request, None, {}, str(error))
