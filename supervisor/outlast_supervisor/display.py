"""What people and monitors see of a running supervisor: lines, live progress, status.json, systemd."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.jobfile import Job
from outlast_jobs.rundir import RunDirectory

from . import chores
from .helper import Helper, bounded
from .journaler import Journaler
from .launch import Launcher
from .loop import Loop
from .processes import in_the_kernel
from .progress import Progress
from .schedulers.watch import Outside
from .sdnotify import ServiceManager
from .snapshot import Facts, snapshot
from .states import Launching, Running, Starting, Stopping

STATUS_EVERY = 30.0  # seconds between two snapshots while nothing changes
FIRST = 0.05  # seconds until the first snapshot: the first moments are nobody's news
STATUS_LEAST = 0.5  # and the least between two while much does
STUCK = 30.0  # seconds for something that takes milliseconds
LOOK_AGAIN = 5.0  # seconds between two looks at a write of the status that does not end
LAST_WAIT = 3.0  # seconds for the very last snapshot
_KEPT = ("step", "total", "loss", "last_save", "restored")  # what stays true when no worker runs
LIVE_EVERY = 0.25  # on a terminal, where a person watches


class Display:
    """Shows the state of the loop; never waits for the run directory, except for the very last snapshot."""

    def __init__(
        self, run: RunDirectory, run_id: str, loop: Loop, launcher: Launcher, *, quiet: bool, verbose: bool
    ) -> None:
        self._run, self._run_id, self._loop, self._launcher = run, run_id, loop, launcher
        self._speaker = Progress(live=False) if quiet else Progress()
        self._progress = None if quiet else self._speaker
        self._verbose = verbose
        self.manager = ServiceManager(os.environ)
        self._me = str(ProcessIdentity.current())
        self._started = time.time()
        self._shown: tuple[Any, ...] | None = None
        self._written_at = time.monotonic() - STATUS_LEAST + FIRST
        self._looked_at = 0.0
        self._beaten_at = 0.0
        self._drawn_at = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)
        self._attempt = 0
        self._latest: dict[str, Any] = {}
        self.writing = False
        self.exclusion = ""
        self.around: Outside | None = None
        self.stuck = 0.0  # seconds for which a helper has been waiting for the run directory
        self.unkillable: tuple[int, ...] = ()  # pids that were killed and are held in the kernel
        self._told_stuck = False
        self._told_unjournaled = False
        self.standby: Callable[[], dict[str, Any] | None] = lambda: None
        self.taken: Callable[[], bool] = lambda: False  # whoever has the run by now tells its status

    def tell(self, text: str, level: str) -> None:
        """Speak to whoever started us."""
        if self._progress is None:
            if level == "error":  # by mail, say, so it names the run and the day
                job, when = self._launcher.job.name, time.strftime("%Y-%m-%d %H:%M:%S")
                self._speaker.event(f'outlast: {when}, run "{job}": {text}')
            return
        if level == "debug" and not self._verbose:
            return
        mark = {"warning": "warning: ", "error": "error: "}.get(level, "")
        self._progress.event(f"{time.strftime('%H:%M:%S')} {mark}{text}")

    def next_due(self) -> float:
        """When to show again."""
        due = self._write_due()
        if self.writing:  # it may take for ever, and the loop must not turn meanwhile
            due = max(due, self._looked_at + LOOK_AGAIN)
        if self.manager.watchdog_seconds is not None:
            due = min(due, self._beaten_at + self.manager.watchdog_seconds / 3)
        return due

    def _write_due(self) -> float:
        return self._written_at + (STATUS_LEAST if self._key() != self._shown else STATUS_EVERY)

    def show(self, now: float, helper: Helper, journaler: Journaler) -> None:
        """Show what changed, as often as is useful."""
        self._count_steps()
        if (self.stuck >= STUCK) != self._told_stuck:
            self._told_stuck = not self._told_stuck
            said = "does not answer: waiting for its file system" if self._told_stuck else "answers again"
            self.tell(f"the run directory {said}", "warning")
        if journaler.unjournaled != self._told_unjournaled:
            self._told_unjournaled = not self._told_unjournaled
            why = journaler.error or "its file system does not answer"
            cannot = f"cannot be written: {why}; the run goes on, and events are kept in memory"
            self.tell(f"the journal {cannot if self._told_unjournaled else 'is written again'}", "warning")
        self._looked_at = now
        beat = self.manager.watchdog_seconds
        if beat is not None and now >= self._beaten_at + beat / 3:
            self._beaten_at = now  # the loop lives, whatever the disk does
            self.manager.alive()
        if self._loop.state is not None and self._loop.state.ledger.leaving:
            self.manager.leaving(self._loop.state, now)
        if now >= self._write_due() and not self.writing:
            view = self._write(now, journaler)
            self.writing = True
            job, attempt = self._launcher.job, int(view.get("attempt") or 0)
            helper.submit("status", lambda: self._chore(view, job, attempt))
        elif self._progress is not None and now >= self._drawn_at + LIVE_EVERY and self._key() != self._shown:
            self._drawn_at = now
            self._progress.update(self._view(now, journaler))

    def last(self, journaler: Journaler, *, write: bool) -> None:
        """The snapshot that stays when the supervisor is gone; a dead disk must not hold the end."""
        self.manager.stopping()
        view = self._write(time.monotonic(), journaler)

        def leave() -> None:
            with contextlib.suppress(OSError):
                self._save(view)

        if write:
            bounded(leave, LAST_WAIT)
        self._speaker.close(view)

    def _write(self, now: float, journaler: Journaler) -> dict[str, Any]:
        view = self._view(now, journaler)
        self._shown, self._written_at = self._key(), now
        if self._progress is not None:
            self._progress.update(view)
        step = "" if view.get("step") is None else f", step {view['step']}"
        self.manager.status(f"attempt {view.get('attempt')}: {view.get('state')}{step}")
        return view

    def _save(self, view: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # what cannot be looked at shows nothing
            if self.taken():
                return
        self._run.write_status(view)

    def _chore(self, view: dict[str, Any], job: Job, attempt: int) -> None:
        self._save(view)
        if attempt and job.logs.max_bytes is not None:
            chores.trim_log(self._run.attempt_log(attempt), job.logs.max_bytes)

    def _view(self, now: float, journaler: Journaler) -> dict[str, Any]:
        if self._loop.state is None:
            return {}
        facts = Facts(
            run_id=self._run_id,
            name=self._launcher.job.name,
            host=hostname(),
            supervisor=self._me,
            started=self._started,
            exclusion=self.exclusion,
            unjournaled=journaler.unjournaled,
            warnings=self._warnings(journaler),
            rate=self._rate(),
            shielded=self._launcher.job.signals.mode == "outlast",
            clock=time.time() - time.monotonic(),
            scheduler=self.around.job if self.around else "",
            requeue=self.around.requeue if self.around else "",
            between=self._loop.policy.between,
            standby=self.standby(),
        )
        view = snapshot(self._loop.state, facts, now)
        return view if view["step"] is not None else {**view, **self._latest}

    def keep(self, journaler: Journaler) -> None:
        """Keep what stays true of the worker, whose end this is."""
        view = self._view(time.monotonic(), journaler)
        self._latest = {key: view[key] for key in _KEPT}

    def _warnings(self, journaler: Journaler) -> list[str]:
        found = [f"the journal cannot be written: {journaler.error}"] if journaler.error else []
        if self.stuck >= STUCK:
            found.append(f"the run directory has not answered for {self.stuck:.0f} s")
        if self.unkillable:
            found.append(f"waiting for {in_the_kernel(self.unkillable)}")
        return found

    def _count_steps(self) -> None:
        state = self._loop.state
        if isinstance(state, Launching):
            self._steps.clear()
        if not isinstance(state, (Starting, Running, Stopping)) or state.live.stepped_at is None:
            return
        point = (state.live.stepped_at, state.live.step)
        if state.live.attempt != self._attempt:
            self._attempt = state.live.attempt
            self._steps.clear()
        if not self._steps or point[1] > self._steps[-1][1]:
            self._steps.append(point)

    def _rate(self) -> float | None:
        """Steps a second over the last reports."""
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at and last > first else None

    def _key(self) -> tuple[Any, ...]:
        state = self._loop.state
        live = getattr(state, "live", None)
        return (
            type(state),
            self.unkillable,
            state.ledger if state else None,
            live and (live.step, live.phase, live.seals, live.attached, live.save_wanted),
            self.standby(),
        )
