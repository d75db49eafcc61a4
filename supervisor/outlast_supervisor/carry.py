"""Carry out what was decided: the world-changing part of the supervisor, in the order of the decisions."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from outlast_jobs import events as journal
from outlast_jobs.contract import Env
from outlast_jobs.identity import ProcessIdentity, is_blind
from outlast_jobs.locks import is_busy
from outlast_jobs.rundir import RunDirectory

from . import actions as act
from . import chores, linux, processes
from . import events as ev
from .choosing import choose
from .chores import Desk
from .copies import works_elsewhere
from .helper import Helper
from .hooks import Hooks
from .journaler import Journaler
from .launch import Launcher, Opened, told
from .loop import Loop
from .standby import Standby
from .states import Clearing, Ending, Finished

# what changes the world outside our processes waits until the records before it are on disk
_AFTER_JOURNAL = (act.SetAside, act.Choose, act.Hook, act.Answer, act.Exit)

TELL_BLIND_EVERY = 30.0  # seconds
UNKILLABLE_AFTER = 1.0  # seconds in which what was killed ends, unless the kernel holds it


class Carrier(Struct):
    """Carries out actions. ``tell`` speaks to people, ``finish`` ends the loop with an exit code."""

    loop: Loop
    desk: Desk
    journaler: Journaler
    launcher: Launcher
    chores: Helper
    pulse: Helper  # for what is short: nothing of it may wait for a long chore
    verifier: Helper
    hooks: Hooks
    tell: Callable[[str, str], None]
    finish: Callable[[int, str, bool], None]
    note_data: Callable[[str, dict[str, Any]], dict[str, Any]]
    standby: Standby
    former: tuple[RunDirectory, str] | None = None  # the run that --fresh took the place of, and its id
    new: bool = False  # the run's id was made by this start: nothing bears it yet
    ours: Callable[[int], bool] = lambda pid: False  # whether a child serves us and no attempt
    worker_pid: int = 0
    unkillable: tuple[int, ...] = ()  # what was killed and is held in the kernel
    _killed_at: dict[int, float] = field(default_factory=dict)
    _queue: deque[tuple[int, act.Action]] = field(default_factory=deque)
    _last_note: int = 0
    _launch_after: int = 0  # the record that has to be on disk before the worker starts
    _ready: Opened | None = None  # the files of the attempt that waits for it
    _start_at: float = 0.0  # the instant before which it is not executed
    _cleared_once: bool = False
    _look_wanted: bool = False
    _tell_blind_at: float = 0.0
    _resumed_from: str | None = None
    _prune_waits: bool = False

    def carry(self, actions: Sequence[act.Action]) -> None:
        """Carry out at once what may be, and queue the rest behind its records."""
        together = any(isinstance(action, act.Choose) for action in actions)  # its start is recorded next
        for action in actions:
            if isinstance(action, act.Note):
                self.note(action.event, dict(action.data), together=together)
            elif isinstance(action, act.Choose) and not self._setting_aside():
                self._do(action)  # it journals by itself what it renames, so it need not wait for the past
            elif isinstance(action, act.Exit) and action.at_once:
                self._do(action)
            elif isinstance(action, act.Spawn):
                self._launch_after = self._last_note
                self._do(action)  # its files may be opened meanwhile: they are no worker yet
            elif isinstance(action, _AFTER_JOURNAL):
                self._queue.append((self._last_note, action))
            else:
                self._do(action)
        self.settle()

    def _setting_aside(self) -> bool:
        return any(isinstance(action, act.SetAside) for _, action in self._queue)

    def note(self, event: str, data: dict[str, Any], *, together: bool = False) -> None:
        """Write a record, as `Journaler.note`; what is queued after it waits for it."""
        self._last_note = self.journaler.note(event, self.note_data(event, data), together=together)

    def answer(self, request: str, ok: bool, text: str) -> None:
        """Answer a request; one without an id has nobody who waits."""
        if request:
            self.chores.submit("quiet", lambda: chores.answer(self.desk, request, ok, text))

    def look_again(self) -> None:
        """A child that was not the worker itself ended: perhaps nothing is left now.

        One look follows for all that end at once, not one each: to look takes as long as they are many.
        """
        self._look_wanted = True

    def was_standby(self, pid: int, code: int) -> bool:
        """Whether a child that ended was the standby; what a preloaded module had started ends with it."""
        if not self.standby.ended(pid, code):
            return False
        if isinstance(self.loop.state, Finished):  # no attempt's end comes any more, at which it is found
            processes.end(self.own(), "kill", spare_shielded=True)
        return True

    def settle(self) -> None:
        """Carry out what waited for records that are on disk now, or for all that came at once to be heard."""
        if self._look_wanted:
            self._look_wanted = False
            if isinstance(self.loop.state, Ending) and not self.loop.state.examining:
                self._leftovers("look")
        due = self.launch_due
        if self._ready is not None and due is not None and time.monotonic() >= due:
            opened, self._ready = self._ready, None
            self._launch(opened)
        while self._queue and self.journaler.settled(self._queue[0][0]):
            self._do(self._queue.popleft()[1])

    @property
    def launch_due(self) -> float | None:
        """When a worker whose record is on disk and whose files are open is started: its exec is at its time."""
        if self._ready is None or not self.journaler.settled(self._launch_after):
            return None
        return self._start_at - self.standby.ahead

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Say(text, level):
                self.tell(text, level)
            case act.EndLeftovers(how):
                self._leftovers(how)
            case act.Choose():
                job, forced = self.launcher.job, self.launcher.forced
                self._start_at = action.start_at or 0.0
                self.chores.submit("chosen", lambda: choose(self.desk, job, action, forced))
            case act.Spawn(attempt, chosen, cause):
                kept = self.loop.intake.buffer.fd >= 0
                self.pulse.submit("opened", lambda: self.launcher.open(attempt, chosen, cause, kept))
            case act.SignalTrainers(role):
                self.signal_trainers(role)
            case act.SignalWorker(role):
                self._signal_worker(role)
            case act.SignalAll(how):
                self._signal_all(how)
            case act.Examine(attempt, within):
                self.loop.trainers.clear()
                if within:
                    self._finish_save(attempt, within)
                self.look_at_script(self.chores)
                self.chores.submit("examined", lambda: chores.examine(self.desk, attempt, self.launcher.job))
            case act.Look(attempt):
                self.chores.submit("event", lambda: chores.look(self.desk, attempt))
            case act.Verify(name):
                self.verifier.submit(
                    "event", lambda: chores.verified(self.desk, name, lambda: self.loop.stopped)
                )
            case act.SetAside(name, reason):
                self.chores.submit("quiet", lambda: chores.set_aside(self.desk, name, reason))
            case act.Prune(resumed_from):
                self._prune_later(resumed_from)
            case act.Audit(attempt):
                self.chores.submit("event", lambda: chores.audit(self.desk, attempt))
            case act.Answer(request, ok, text):
                self.answer(request, ok, text)
            case act.Hook(name, reason):
                self._hook(name, reason)
            case act.Exit(code, reason, at_once):
                self.finish(code, reason, at_once)

    def look_at_script(self, helper: Helper) -> None:
        """See how far a script without the library is."""
        job = self.launcher.job
        if job.adopt is not None:
            helper.submit("event", lambda: chores.wrote(self.desk, job))

    def _finish_save(self, attempt: int, within: float) -> None:
        from .finishing import finish_save  # not before: most lives need none of it

        kept = self.loop.intake.buffer.fd
        if kept < 0:  # given up since it was looked at
            return
        try:
            fd = os.dup(kept)  # whatever becomes of ours meanwhile
        except OSError as error:
            self.tell(f"a save in memory cannot be finished: {error.strerror}", "warning")
            return
        self.chores.submit("finished", lambda: finish_save(self.desk, fd, attempt, within))

    def save_finished(self, told: str, sealed: ev.Sealed | None) -> None:
        """What came of the save that a dead worker's buffer held."""
        if told:
            self.tell(told, "warning" if sealed is None else "info")
        if sealed is not None:
            self.loop.post(sealed)

    def _prune_later(self, resumed_from: str | None) -> None:
        """One look at all generations answers every wish for one that came before it."""
        self._resumed_from = resumed_from
        if not self._prune_waits:
            self._prune_waits = True
            self.chores.submit("pruned", self._prune)

    def _prune(self) -> list[str]:
        self._prune_waits = False  # first: what is wished for from here on may be of a newer generation
        return chores.prune(self.desk, self.launcher.job, self._resumed_from)

    def opened(self, opened: Opened | None, error: BaseException | None) -> None:
        """The files of the next attempt are open, or cannot be."""
        if opened is None:
            self.loop.post(
                ev.SpawnFailed(
                    f"{told(error, 'the run directory')}; make room or give access",
                    "cannot open a file for the worker",
                )
            )
            return
        self._ready = opened
        self.settle()

    def _launch(self, opened: Opened) -> None:
        self.loop.intake.expect(self.desk.run_id, opened.attempt)
        if opened.told:
            self.tell(opened.told, "warning")
        try:
            address = self.loop.reachable()
        except OSError as error:
            self._close(opened)
            self.loop.post(
                ev.SpawnFailed(error.strerror or str(error), "cannot make a socket for the worker")
            )
            return
        buffer, state = self.loop.intake.buffer, self.loop.state
        tight = state is not None and state.ledger.counters.tight
        lent = (buffer.fd, buffer.inode) if buffer.lend(None if tight else opened.free) else None
        order = self.launcher.order(opened, address, self._start_at, lent, tight)

        def went(worker: ProcessIdentity) -> None:
            self._close(opened)
            self.worker_pid = worker.pid
            self.loop.intake.know(worker)
            self.loop.post(ev.Spawned(worker))

        def failed(failure: Exception) -> None:
            self._close(opened)
            self.loop.post(ev.SpawnFailed(told(failure, order.command[0])))

        self.standby.start(order, self.launcher.job, opened.log_fd, went, failed)

    def _close(self, opened: Opened) -> None:
        """From a helper, and before it looks whether anybody holds these files."""
        self.pulse.submit("quiet", opened.close)

    def signal_trainers(self, role: str) -> None:
        """Send every attached trainer the signal of a role."""
        number = self.launcher.signal_of(role)
        for identity, fd in list(self.loop.trainers.by_pid.values()):
            try:
                if fd >= 0:
                    linux.pidfd_send_signal(fd, number)
                else:
                    processes.send(identity, number)
            except OSError:
                self.tell(f"trainer {identity.pid} is gone", "debug")
        if role != "save":
            processes.set_going(self.own())

    def _signal_worker(self, role: str) -> None:
        number = self.launcher.signal_of(role)
        # our own child, not reaped yet: its pid cannot belong to anyone else
        if self.worker_pid and role == "save" and not processes.hears(self.worker_pid, number):
            self.loop.post(ev.SaveUnheard(signal.Signals(number).name))
        elif self.worker_pid:
            os.kill(self.worker_pid, number)
            if role != "save":
                processes.set_going(self.own())

    def _signal_all(self, how: str) -> None:
        left = self.own()
        if how == "kill":
            processes.end(left, "kill", spare_shielded=True)
            if self.worker_pid:  # whatever was overlooked: all else can be seen once it is gone
                os.kill(self.worker_pid, signal.SIGKILL)
            self._tell_unkillable(left)
            return
        for process in left.all:
            processes.send(process, signal.SIGTERM)
        processes.set_going(left)

    def _leftovers(self, how: str) -> None:
        """Look for what is left, signal it, and report."""
        if isinstance(self.loop.state, Clearing):
            self.pulse.submit("cleared", lambda: self._clear(how))
            return
        try:
            left = self._left()
        except OSError as error:  # nothing can be looked at now, so nothing is known to be gone
            if (now := time.monotonic()) >= self._tell_blind_at:
                self._tell_blind_at = now + TELL_BLIND_EVERY
                self.tell(
                    f"cannot look for what the attempt left: {error.strerror}; looking again", "warning"
                )
            self.loop.post(ev.LeftoversRemain(()))
            return
        if not left:
            self.unkillable, self._killed_at = (), {}
        if how != "look":
            # a trainer that still saves needs its loader processes
            spare = bool(self.loop.trainers.by_pid)
            processes.end(left, how, spare, self.launcher.signal_of("stop"))
            if how == "kill":
                self._tell_unkillable(left)
        if left:
            self.loop.post(ev.LeftoversRemain(tuple(p.pid for p in left.all)))
        else:
            self.loop.post(ev.LeftoversGone(self.loop.intake.buffer.unsealed))

    def _clear(self, how: str) -> ev.LeftoversRemain | ev.LeftoversGone:
        """The same for earlier attempts; from a helper, since it opens files of the run directory."""
        runs = {self.desk.run_id: self.desk.run}
        if self.former is not None:
            runs[self.former[1]] = self.former[0]
        # to look through all processes takes milliseconds, and the more of them the machine has
        unborn = {self.desk.run_id} if self.new and not self._cleared_once else set()
        marked, spared = runs.keys() - unborn, lambda pid: works_elsewhere(pid, runs)
        left = processes.of_any(marked, spared=spared) if marked else processes.NOTHING
        # the second way, for those whose environment was overwritten, costs more: not at every look
        thorough = not left or how != "look" or not self._cleared_once
        self._cleared_once = True
        busy = [run for run in runs.values() if _alive_is_held(run)] if thorough else []
        for run in busy:
            with contextlib.suppress(OSError):
                left = processes.together(left, processes.holding(run.alive))
        if how != "look":
            processes.end(left, how, True, self.launcher.signal_of("stop"))
        return ev.LeftoversRemain(tuple(p.pid for p in left.all)) if left or busy else ev.LeftoversGone()

    def _tell_unkillable(self, left: processes.Survivors) -> None:
        now = time.monotonic()
        self._killed_at = {p.pid: self._killed_at.get(p.pid, now) for p in left.all}
        late = {pid for pid, at in self._killed_at.items() if now - at >= UNKILLABLE_AFTER}
        stuck = tuple(processes.unkillable(left, late))
        if stuck and stuck != self.unkillable:
            self.tell(f"waiting for {processes.in_the_kernel(stuck)}", "warning")
        self.unkillable = stuck

    def own(self) -> processes.Survivors:
        """What is seen to live of the current attempt."""
        try:
            return self._left()
        except OSError:
            return processes.NOTHING

    def _left(self) -> processes.Survivors:
        """What lives of it; OSError where that cannot be looked at."""
        return processes.of_this_supervisor(self._stranger)

    def _stranger(self, pid: int) -> bool:
        """Whether a child of ours belongs to no attempt."""
        if pid == self.worker_pid:
            return False
        if self.ours(pid):
            return True
        if os.getpid() == 1:  # the first process is given all orphans: of a shell in the same container, say
            marked = processes.carries(pid, f"{Env.RUN_ID}={self.desk.run_id}".encode())
            if not marked and not processes.holds(pid, self.desk.run.alive.name):
                return True
        return self.hooks.theirs(pid)

    def _hook(self, name: str, reason: str) -> None:
        try:
            if self.hooks.start(name, reason, time.monotonic()):
                self.note(journal.HOOK, {"name": name, "code": None})
        except OSError as error:
            self.tell(f"cannot run the hook {name}: {error}", "warning")


def _alive_is_held(run: RunDirectory) -> bool:
    try:
        return bool(is_busy(run))
    except OSError as error:
        if is_blind(error):
            raise
        return False
