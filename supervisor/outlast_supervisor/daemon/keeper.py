"""The daemon's loop: it sleeps until something happens, looks at the folder, plans, and has that carried out."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

from outlast_jobs.contract import ExitCode
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.locks import RunLock
from outlast_supervisor import early
from outlast_supervisor.helper import Helper, bounded
from outlast_supervisor.sdnotify import ServiceManager

from .books import Books, Places, draw_up, past_of, read_books, write_books
from .folder import Folder, Look, Lost
from .herd import Herd, exit_code_of
from .model import Limits, Plan, Standing, State, Supervisor
from .plan import plan
from .telling import Tell
from .wakeups import Wakeups
from .watch import Watch

LEAST = 0.1  # seconds between two looks, however much happens in the folder
FIRST = 5.0  # seconds after which the first plan is made even if a file is still being written
STUCK = 10.0  # seconds for a look, which takes milliseconds
LAST_WAIT = 3.0  # seconds for the last word on a dead disk
_LOOKS = (signal.SIGUSR1, signal.SIGHUP)
_SIGNALS = (*early.STOPS, *_LOOKS, signal.SIGUSR2, signal.SIGCHLD)


class Keeper:
    """One daemon's life for one folder whose lock is held."""

    def __init__(
        self, folder: Path, lock: RunLock, limits: Limits, rescan: float, tell: Tell, *, terminal: bool
    ) -> None:
        self._places, self._lock, self._limits = Places(folder), lock, limits
        self._rescan, self._tell = rescan, tell  # seconds: for network file systems and lost events
        self._ends = (*early.STOPS, signal.SIGHUP) if terminal else early.STOPS
        self._ignored = early.ignored()
        self._wakeups = Wakeups()
        self._herd = Herd(folder, limits.slots, tell, lambda found: self._wakeups.watch(found.process))
        self._results: queue.SimpleQueue[tuple[str, Any, BaseException | None]] = queue.SimpleQueue()
        self._scanner = Helper("folder", self._deliver)
        self._clerk = Helper("books", self._deliver)
        self._pulse = Helper("lease", self._deliver)
        self._asker = Helper("ends", self._deliver)  # runs may lie on other disks, and those may hang
        self._manager = ServiceManager(dict(os.environ))
        self._began = time.monotonic()
        self._look: Look | None = None
        self._look_at, self._beat_at, self._lease_at = self._began, self._began, self._began
        self._looked_at = self._began - LEAST
        self._plan_at: float | None = None
        self._asking: set[ProcessIdentity] = set()
        self._standing: dict[str, Standing] = {}
        self._written: Books | None = None
        self._trouble = ""
        self._code: int | None = None
        self._takes_all = os.getpid() == 1  # the kernel ends a pid namespace with its first process
        self._leaving = False
        self._folder: Folder | None = None
        self._path = folder

    def run(self) -> int:
        """Keep the folder's jobs until a signal ends that; the exit code. No training ends with it."""
        books = read_books(self._places)
        for number in self._wakeups.listen(_SIGNALS):
            self._heard(number)
        self._herd.past = past_of(books) if books else {}
        self._herd.adopt(books)
        files = {supervisor.file for supervisor in self._herd.living.values()}
        self._folder = Folder(self._path, self._lock.is_named, files)
        watch = Watch(self._path, self._look_now)
        self._tell("watching", "", f'"{self._path}"')
        while self._code is None:
            self._turn()
            if self._code is None:
                numbers, ended = self._wakeups.sleep(self._until())
                self._notice(numbers, ended)
        watch.close()
        self._close()
        return self._code

    # -- one turn ------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic()
        self._beat(now)
        self._collect()
        if self._look_at <= now and not self._scanner.pending and self._folder is not None:
            self._look_at, self._looked_at = now + self._rescan, now
            self._find_the_dead()
            self._scanner.submit("look", self._folder.look)
        if self._plan_at is not None and now >= self._plan_at:
            self._make_plan(now)
        if self._leaving and not self._herd.living:
            self._code = ExitCode.SAVED
        self._write_down()

    def _make_plan(self, now: float) -> None:
        self._plan_at = None
        look = self._look
        if look is None or (look.snapshot.pending and now < self._began + FIRST):
            return  # what was not read yet cannot be told from what was removed
        if self._scanner.stuck(now) >= STUCK:
            self._plan_at = now + self._rescan
            self._complain("it does not answer: waiting for its file system, nothing starts or stops")
            return
        made = self._planned(look, now)
        dues = [made.due] if made.due is not None else []
        for action in made.actions:
            if (again := self._herd.carry(action)) is not None:
                dues.append(now + again)
        if not look.trouble:
            self._herd.keep_past_of({entry.run_dir: entry for entry in look.snapshot.entries})
        if made.actions:
            made = self._planned(look, now)  # for how the jobs stand now
        self._say(made)
        self._standing = dict(made.standing)
        self._plan_at = min(dues, default=None)

    def _planned(self, look: Look, now: float) -> Plan:
        living = tuple(self._herd.living.values())
        draining = look.draining or self._leaving
        return plan(look.snapshot, living, self._herd.past, self._limits, draining=draining, now=now)

    def _say(self, made: Plan) -> None:
        """Each refusal once, and each time it changes."""
        for file, stands in made.standing.items():
            before = self._standing.get(file)
            if before is not None and before.reason == stands.reason:
                continue
            past = self._herd.past.get(stands.run_dir)
            told = past is not None and past.text == stands.reason  # when its supervisor ended
            as_it_was = stands.state is State.RUNNING and stands.reason.startswith("goes on")
            if as_it_was or (stands.state is State.REFUSED and not told):
                self._tell("refused", file, stands.reason)
            elif stands.state is State.QUEUED and (before is None or before.state is not State.QUEUED):
                self._tell("queued", file, stands.reason)

    # -- what happened -------------------------------------------------------------------------------------

    def _notice(self, numbers: list[int], ended: list[ProcessIdentity]) -> None:
        for number in numbers:
            self._heard(number)
        for supervisor in list(self._herd.living.values()):
            if supervisor.process in ended:
                self._ask_how_it_ended(supervisor)

    def _heard(self, number: int) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGCHLD:
            if self._herd.reap():
                self._plan_at = time.monotonic()
        elif number in self._ignored:
            return
        elif number in self._ends and self._takes_all and self._herd.living and not self._leaving:
            self._leaving = True
            self._plan_at = time.monotonic()
            text = f"{name}: as the first process of a container it would take every training with it"
            self._tell("draining", "", f"{text}: all save and stop")
        elif number in self._ends:
            left = len(self._herd.living)
            cure = f'; "outlast drain {self._path}" stops them' if left else ""
            self._tell("ends", "", f"{name}: trainings that go on: {left}{cure}")
            self._code = ExitCode.DONE
        elif number in _LOOKS:
            self._look_at = time.monotonic()

    def _find_the_dead(self) -> None:
        """Where the kernel cannot tell the end of a process that is no child of ours."""
        for supervisor in list(self._herd.living.values()):
            if not supervisor.ours and not supervisor.process.alive():
                self._ask_how_it_ended(supervisor)

    def _ask_how_it_ended(self, supervisor: Supervisor) -> None:
        """Its place stays taken until that is known: its run may lie on a disk that hangs."""
        self._wakeups.forget(supervisor.process)
        if supervisor.process not in self._asking:
            self._asking.add(supervisor.process)
            self._asker.submit("ended", lambda: (supervisor, _code_of(supervisor)))

    def _deliver(self, tag: str, result: Any, error: BaseException | None) -> None:
        self._results.put((tag, result, error))
        self._wakeups.wake()

    def _collect(self) -> None:
        while True:
            try:
                tag, result, error = self._results.get_nowait()
            except queue.Empty:
                return
            self._result(tag, result, error)

    def _result(self, tag: str, result: Any, error: BaseException | None) -> None:
        if isinstance(error, Lost) or (tag == "lease" and not error and not result):
            self._tell("lost", "", f"{error or 'the lease was lost to another daemon'}; trainings go on")
            self._code = ExitCode.BUSY
        elif error is not None:
            if tag != "books":
                self._tell("trouble", "", f"{type(error).__name__}: {error}")
        elif tag == "look":
            self._looked(result)
        elif tag == "ended":
            supervisor, code = result
            self._asking.discard(supervisor.process)
            self._herd.ended(supervisor.process, code)
            self._plan_at = time.monotonic()

    def _looked(self, look: Look) -> None:
        self._complain(look.trouble)
        if self._look is None or look.draining != self._look.draining:
            if look.draining:
                self._tell("draining", "", "everything saves and stops, and nothing starts")
            elif self._look is not None:
                self._tell("resumed", "", "jobs are started again")
        self._look = look
        if look.due is not None:
            self._look_at = min(self._look_at, look.due)
        self._plan_at = time.monotonic()

    def _complain(self, trouble: str) -> None:
        """Say once what keeps us from looking at the folder, and when that is over."""
        if trouble != self._trouble:
            self._trouble = trouble
            text = f'"{self._path}": {trouble}' if trouble else f'"{self._path}" can be looked at again'
            self._tell("trouble" if trouble else "watching", "", text)

    def _look_now(self) -> None:
        """Something may have changed; called from the watcher's thread."""
        self._look_at = self._looked_at + LEAST
        self._wakeups.wake()

    # -- time and papers -----------------------------------------------------------------------------------

    def _until(self) -> float:
        dues = [self._look_at]
        if self._scanner.pending:  # its answer wakes us
            dues = [time.monotonic() + self._rescan]
        if self._plan_at is not None:
            dues.append(self._plan_at)
        if self._manager.watchdog_seconds is not None:
            dues.append(self._beat_at)
        if self._lock.heartbeat is not None:
            dues.append(self._lease_at)
        return max(0.0, min(dues) - time.monotonic())

    def _beat(self, now: float) -> None:
        if self._manager.watchdog_seconds is not None and now >= self._beat_at:
            self._beat_at = now + self._manager.watchdog_seconds / 3
            self._manager.alive()
        if self._lock.heartbeat is not None and now >= self._lease_at:
            self._lease_at = now + self._lock.heartbeat
            self._pulse.submit("lease", self._lock.renew)

    def _write_down(self) -> None:
        """Leave how everything stands, where that changed."""
        if self._look is None or self._clerk.pending:
            return
        books = self._books()
        if self._written is None or not _same(books, self._written):
            self._written = books
            running = sum(1 for job in books.jobs.values() if job.state is State.RUNNING)
            self._manager.status(f"{running} of {len(books.jobs)} jobs run")
            self._clerk.submit("books", lambda: write_books(self._places, books))

    def _books(self) -> Books:
        look = self._look
        draining, trouble = (look.draining, look.trouble) if look else (False, "")
        herd = self._herd
        return draw_up(self._standing, herd.living, herd.past, draining=draining, trouble=trouble)

    def _close(self) -> None:
        self._manager.stopping()
        if self._look is not None and self._code == ExitCode.DONE:
            books = self._books()

            def leave() -> None:
                with contextlib.suppress(OSError):
                    write_books(self._places, books)

            bounded(leave, LAST_WAIT)
        self._wakeups.close()


def _same(one: Books, other: Books) -> bool:
    return (one.draining, one.trouble, one.running, one.jobs) == (
        other.draining,
        other.trouble,
        other.running,
        other.jobs,
    )


def _code_of(supervisor: Supervisor) -> int | None:
    try:
        return exit_code_of(supervisor)
    except OSError:
        return None
