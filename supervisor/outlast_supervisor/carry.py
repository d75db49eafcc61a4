"""Carry out what was decided: the world-changing part of the supervisor, in the order of the decisions."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from outlast_jobs import events as journal
from outlast_jobs.locks import is_busy
from outlast_jobs.requests import remove_request

from . import actions as act
from . import chores, processes
from . import events as ev
from .choosing import choose
from .chores import Desk
from .helper import Helper
from .hooks import Hooks
from .journaler import Journaler
from .launch import Launcher
from .loop import Loop
from .states import Clearing, Ending, State

# what changes the world outside our processes waits until the records before it are on disk
_AFTER_JOURNAL = (act.Spawn, act.SetAside, act.Choose, act.Hook, act.Answer, act.Exit)


@dataclass
class Carrier:
    """Carries out actions. ``tell`` speaks to people, ``finish`` ends the loop with an exit code."""

    loop: Loop
    desk: Desk
    journaler: Journaler
    launcher: Launcher
    chores: Helper
    verifier: Helper
    hooks: Hooks
    tell: Callable[[str, str], None]
    finish: Callable[[int, str], None]
    note_data: Callable[[str, dict[str, Any]], dict[str, Any]]
    worker_pid: int = 0
    _queue: deque[tuple[int, act.Action]] = field(default_factory=deque)
    _last_note: int = 0
    _resumed_from: str | None = None
    _prune_waits: bool = False

    def carry(self, state: State, actions: Iterable[act.Action]) -> None:
        """Carry out at once what may be, and queue the rest behind its records."""
        for action in actions:
            if isinstance(action, act.Note):
                self.note(action.event, dict(action.data))
            elif isinstance(action, act.Choose) and not self._setting_aside():
                self._do(action)  # it journals by itself what it renames, so it need not wait for the past
            elif isinstance(action, _AFTER_JOURNAL):
                self._queue.append((self._last_note, action))
            else:
                self._do(action)
        self.settle()

    def _setting_aside(self) -> bool:
        return any(isinstance(action, act.SetAside) for _, action in self._queue)

    def note(self, event: str, data: dict[str, Any]) -> None:
        """Write a record; what is queued after it waits for it."""
        self._last_note = self.journaler.note(event, self.note_data(event, data))

    def answer(self, request: str, ok: bool, text: str) -> None:
        """Answer a request; one without an id has nobody who waits."""
        if request:
            self.chores.submit("quiet", lambda: chores.answer(self.desk, request, ok, text, remove_request))

    def look_again(self) -> None:
        """A child that was not the worker itself ended: perhaps nothing is left now."""
        if isinstance(self.loop.state, Ending) and not self.loop.state.examining:
            self._leftovers("look")

    def settle(self) -> None:
        """Carry out what waited for records that are on disk now."""
        while self._queue and self.journaler.settled(self._queue[0][0]):
            self._do(self._queue.popleft()[1])

    @property
    def next_due(self) -> float | None:
        """When a queued action will not wait any longer."""
        return self.journaler.next_due

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Say(text, level):
                self.tell(text, level)
            case act.EndLeftovers(how):
                self._leftovers(how)
            case act.Choose():
                job, forced = self.launcher.job, self.launcher.take_forced()
                self.chores.submit("event", lambda: choose(self.desk, job, action, forced))
            case act.Spawn(attempt, chosen, cause):
                self._spawn(attempt, chosen, cause)
            case act.SignalTrainers(role):
                self.signal_trainers(role)
            case act.SignalWorker(role):
                self._signal_worker(role)
            case act.SignalAll(how):
                self._signal_all(how)
            case act.Examine(attempt):
                self.loop.trainers.clear()
                self.chores.submit("event", lambda: chores.examine(self.desk, attempt))
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
            case act.Exit(code, reason):
                self.finish(code, reason)
            case act.Note():
                self.note(action.event, dict(action.data))

    def _prune_later(self, resumed_from: str | None) -> None:
        """One look at all generations answers every wish for one that came before it."""
        self._resumed_from = resumed_from
        if not self._prune_waits:
            self._prune_waits = True
            self.chores.submit("pruned", self._prune)

    def _prune(self) -> list[str]:
        self._prune_waits = False  # first: what is wished for from here on may be of a newer generation
        return chores.prune(self.desk, self.launcher.job, self._resumed_from)

    def _spawn(self, attempt: int, chosen: ev.Chosen, cause: str) -> None:
        self.loop.intake.expect(self.desk.run_id, attempt)
        try:
            worker = self.launcher.launch(attempt, chosen, cause, self.loop.notify.path)
        except OSError as error:
            self.loop.post(
                ev.SpawnFailed(f"{error.strerror or error}: {error.filename or self.launcher.job.command[0]}")
            )
            return
        self.worker_pid = worker.pid
        self.loop.post(ev.Spawned(worker))

    def signal_trainers(self, role: str) -> None:
        """Send every attached trainer the signal of a role."""
        number = self.launcher.signal_of(role)
        for identity, fd in list(self.loop.trainers.by_pid.values()):
            try:
                signal.pidfd_send_signal(fd, number)
            except OSError:
                self.tell(f"trainer {identity.pid} is gone", "debug")
        if role != "save":
            processes.set_going(self._own())

    def _signal_worker(self, role: str) -> None:
        # our own child, not reaped yet: its pid cannot belong to anyone else
        if self.worker_pid:
            os.kill(self.worker_pid, self.launcher.signal_of(role))
            if role != "save":
                processes.set_going(self._own())

    def _signal_all(self, how: str) -> None:
        left = processes.of_this_supervisor(self.hooks.pids)
        if how == "kill":
            processes.end(left, "kill", spare_shielded=True)
            return
        for process in left.all:
            processes.send(process, signal.SIGTERM)
        processes.set_going(left)

    def _leftovers(self, how: str) -> None:
        """Look for what is left, signal it, and report."""
        clearing = isinstance(self.loop.state, Clearing) or self.loop.state is None
        left = processes.of_run(self.desk.run_id, self.hooks.pids) if clearing else self._own()
        if how != "look":
            # a trainer that still saves needs its loader processes
            processes.end(left, how, spare_shielded=clearing or bool(self.loop.trainers.by_pid))
            stuck = processes.unkillable(left)
            if how == "kill" and stuck:
                self.tell(
                    f"waiting for pids {stuck}: they hang in the kernel (a dead file system?)", "warning"
                )
        busy = clearing and not left and self._alive_is_held()
        if left or busy:
            self.loop.post(ev.LeftoversRemain(tuple(p.pid for p in left.all)))
        else:
            self.loop.post(ev.LeftoversGone())

    def _own(self) -> processes.Survivors:
        return processes.of_this_supervisor(self.hooks.pids)

    def _alive_is_held(self) -> bool:
        try:
            return bool(is_busy(self.desk.run))
        except OSError:
            return False

    def _hook(self, name: str, reason: str) -> None:
        try:
            if self.hooks.start(name, reason, time.monotonic()):
                self.note(journal.HOOK, {"name": name, "code": None})
        except OSError as error:
            self.tell(f"cannot run the hook {name}: {error}", "warning")
