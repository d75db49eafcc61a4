"""What others ask of a running supervisor, by signal or by request, and what it means."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from outlast_jobs import events as journal
from outlast_jobs.generation import GenerationName
from outlast_jobs.jobfile import Job, JobFileError, command_digest, job_digest, load_job
from outlast_jobs.requests import Request

from . import events as ev
from . import processes
from .carry import Carrier
from .launch import Launcher, policy_of
from .loop import Loop
from .startup import code_digest, write_job

SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_POLITELY_IGNORED = (signal.SIGHUP, signal.SIGINT)  # nohup and a shell's "&" ask for that, and are obeyed


class Asks:
    """Gives signals and requests their meaning; what follows is decided by the state table."""

    def __init__(self, loop: Loop, carrier: Carrier, launcher: Launcher, digests: dict[str, str]) -> None:
        self._loop, self._carrier, self._launcher = loop, carrier, launcher
        self.digests = digests
        self._seen: set[str] = set()
        self._interrupts = 0
        self._terminal = _has_terminal()

    # -- signals -------------------------------------------------------------------------------------------

    def numbers(self) -> set[int]:
        """The signals to listen to."""
        signals = self._launcher.job.signals
        named = {signal.Signals[name].value for name in (signals.save, signals.stop, signals.stacks)}
        ignored = {n.value for n in _POLITELY_IGNORED if signal.getsignal(n) is signal.SIG_IGN}
        return (named | {s.value for s in SIGNALS}) - ignored

    def signal(self, number: int) -> None:
        """A signal came."""
        name = signal.Signals(number).name
        signals = self._launcher.job.signals
        if number == signal.SIGTSTP:
            self._stand_still()
        elif number == signal.SIGINT:
            self._interrupts += 1
            self._loop.post(ev.Notice(name) if self._interrupts == 1 else ev.StopNow(f"a second {name}"))
        elif number == signal.SIGTERM or name == signals.stop:
            self._loop.post(ev.Notice(name))
        elif number == signal.SIGUSR1 or name == signals.save:
            self._loop.post(ev.Warned(name))
        elif number == signal.SIGHUP:
            self._loop.post(ev.Notice(name)) if self._terminal else self._reload(name, "")
        elif name == signals.stacks:
            self._carrier.signal_trainers("stacks")

    def _stand_still(self) -> None:
        """The terminal asks to stop: the worker stops with us, and no watchdog counts the time."""
        left = processes.of_this_supervisor(())
        for process in left.all:
            processes.send(process, signal.SIGSTOP)
        before = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in left.all:
            processes.send(process, signal.SIGCONT)
        seconds = time.monotonic() - before
        self._carrier.note(journal.PAUSED, {"seconds": round(seconds, 3)})
        self._loop.post(ev.Paused(seconds))

    # -- requests ------------------------------------------------------------------------------------------

    def take(self, found: Any) -> None:
        """What lay in the requests folder at the latest look."""
        for request in found.asked:
            if request.id not in self._seen:
                self._seen.add(request.id)
                data = {"id": request.id, "verb": request.verb, "by": request.by}
                self._carrier.note(journal.REQUEST, data)
                self._request(request)

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
        if GenerationName.parse(name) is None or not (desk.run.checkpoints / name).is_dir():
            self._carrier.answer(request.id, False, f'there is no generation "{name}" in this run')
        elif request.verb == "pin":
            desk.pinned.add(name)
            self._carrier.note(journal.PINNED, {"generation": name})
            self._carrier.answer(request.id, True, f"pinned {name}: it is kept until it is unpinned")
        else:
            desk.pinned.discard(name)
            self._carrier.note(journal.UNPINNED, {"generation": name})
            self._carrier.answer(request.id, True, f"unpinned {name}")

    def _reload(self, source: str, request: str) -> None:
        """Cadence, keep, hang and stop count at once, the command from the next start on."""
        old = self._launcher.job
        if old.source is None:
            self._carrier.answer(request, False, "this run has no job file to read again")
            return
        try:
            fresh = load_job(Path(old.source), run_dir=old.run_dir, extra=self._launcher.extra)
        except (JobFileError, OSError) as error:
            self._carrier.tell(f"the job file is not taken, the old one stays: {error}", "error")
            self._carrier.answer(request, False, f"the old job stays: {error}")
            return
        self._adopt(fresh)
        changes = [f"read again for {source}"]
        self._carrier.note(journal.JOB_CHANGED, {**self.digests, "changes": changes})
        self._carrier.tell(f"the job file was read again ({source})", "info")
        self._carrier.answer(request, True, "read again; a changed command counts from the next start on")
        self._loop.post(ev.Tick())

    def _adopt(self, fresh: Job) -> None:
        # the place of a run does not change while it runs
        fresh = msgspec.structs.replace(fresh, run_dir=self._launcher.job.run_dir)
        self._launcher.job = fresh
        self._loop.policy = policy_of(fresh, self._launcher)
        self.digests.update(
            job_digest=job_digest(fresh), command_digest=command_digest(fresh), code_digest=code_digest(fresh)
        )
        self._launcher.config_sha256 = self.digests["command_digest"]
        desk = self._carrier.desk
        self._carrier.chores.submit("quiet", lambda: write_job(desk.run, fresh))


def _has_terminal() -> bool:
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
