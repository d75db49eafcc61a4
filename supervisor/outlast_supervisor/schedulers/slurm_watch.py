"""A supervisor inside a Slurm job: it knows the job's end, and has the job queued again when it leaves unfinished.

Whatever asks Slurm runs beside the loop, and an answer is an event like any other. A signal never waits for one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from ..processes import handles
from ..states import Ledger, Running, Starting
from ..timers import deadline_due
from . import slurm
from .requeue_last import Last
from .slurm import Place, Unanswered
from .tools import Outcome, Tools
from .watch import Outside, Wires

QUICK = 2.0  # seconds for an answer that somebody waits for
PATIENT = 30.0  # seconds for one that nobody does; a controller that is down takes a client some seconds
LEAD = 4.0  # seconds before an end counts at which it is asked for once more: it may have been moved
RECENT = 5.0  # seconds for which an answer is as good as a new one
BACKOFF = (10.0, 300.0)  # seconds until an answer is asked for again, doubling from the first to the second


class InSlurm(Outside):
    """Asks for the end at the start, at each warning, when time stood still, and just before it counts."""

    def __init__(self, wires: Wires, place: Place, env: Mapping[str, str]) -> None:
        super().__init__(wires)
        self._place = place
        self._env = slurm.query_env(env)
        self._tools = Tools(wires.mark)
        self._source = f"the end of {place.name}"
        self.job = place.name
        self.end: float | None = None  # unix seconds
        self._warned_by: tuple[float, str] | None = None  # until when an answer may come, and who warned
        self._ask_at: float | None = None
        self._asked_at: float | None = None
        self._asked = 0  # number of the newest question
        self._pending = 0  # number of the question that no answer came to yet
        self._backoff = BACKOFF[0]
        self._hold_until: float | None = None  # until when a known end is kept back
        self._held_at = -RECENT
        self._told = False
        self._last = Last(wires, place, self._tools, env, lambda: self.end)

    # -- when to ask ---------------------------------------------------------------------------------------

    @property
    def requeue(self) -> str:
        return self._last.text

    def begin(self) -> None:
        if self._place.end is not None:
            self._know(self._place.end)
        if not self._place.by_hand and (shell := _deaf_shell(self._env)) is not None:
            self.wires.tell(
                f"{self.job}: its signals come to the batch script's shell (process {shell}), which they end, and "
                "outlast with it, without a save: write exec outlast run …, as outlast slurm does",
                "warning",
            )

    def ask(self) -> None:
        if self.end is None:
            self._ask_at = time.monotonic()

    def warned(self, source: str) -> None:
        now = time.monotonic()
        if self.wires.loop.policy.on_usr1 != "auto":
            super().warned(source)  # its meaning hangs on no answer
            self._ask_at = now  # a new end is worth knowing all the same
        elif self._warned_by is None:  # else the question is on its way
            self._warned_by = (now + QUICK, source)
            self._ask(now, QUICK)  # anew: what was asked before the warning may not know of a preemption

    def heard(self, number: int) -> None:
        if number == signal.SIGCONT:
            self.resumed()
        self._last.heard(signal.Signals(number).name)

    def resumed(self) -> None:
        now = time.monotonic()
        self._ask_at = now
        counts = self._counts_at(now)
        if counts is not None and counts <= now + QUICK and now >= self._held_at + RECENT:
            self._held_at = now
            # Slurm moves the end of a job that it suspended: the old one may end nothing before it was asked for
            self._hold_until = now + QUICK
            self.wires.deadlines.know(self._source, None)
            self._ask(now, QUICK)

    def jumped(self) -> None:
        if self.end is not None:
            self._know(self.end)

    def _ask(self, now: float, seconds: float) -> None:
        self._ask_at, self._asked_at = None, now
        self._asked += 1
        self._pending = number = self._asked
        words = slurm.end_query(self._place.job)
        self._tools.start(words, self._env, now, seconds, lambda outcome: self._answered(number, outcome))

    def _answered(self, number: int, outcome: Outcome) -> None:
        if number != self._pending:
            return  # a later question was asked meanwhile
        self._pending = 0
        state = self.wires.loop.state
        said = slurm.read_end(outcome)
        waiting, self._warned_by = self._warned_by, None
        if state is not None and state.ledger.leaving:
            return  # what counts then is what was known before
        if isinstance(said, Unanswered):
            self._ask_at = time.monotonic() + self._backoff
            self._backoff = min(2 * self._backoff, BACKOFF[1])
            self._tell_unanswered(said.why, waiting is not None)
            if self._hold_until is not None:
                self._know(self.end)
        else:
            self._backoff = BACKOFF[0]
            self._know(said)
        if waiting is not None:
            super().warned(waiting[1])

    def _tell_unanswered(self, why: str, waited_for: bool) -> None:
        known = "" if self.end is None else ", going by what was known before"
        text = f"the end of {self.job} was not told: {why}{known}"
        self.wires.tell(text, "warning" if waited_for or not self._told else "debug")
        self._told = True

    def _know(self, end: float | None) -> None:
        self.end, self._hold_until = end, None
        at = None if end is None else time.monotonic() + end - time.time()
        self.wires.deadlines.know(self._source, at)

    def _counts_at(self, now: float) -> float | None:
        """When the known end next has a say in the attempt."""
        state = self.wires.loop.state
        if not isinstance(state, (Starting, Running)) or state.ledger.deadline_source != self._source:
            return None
        return deadline_due(state.ledger, state.live, self.wires.loop.policy, now)

    def _recheck_at(self, now: float) -> float | None:
        """When to ask once more before the known end ends the attempt."""
        counts = self._counts_at(now)
        if counts is None or self._pending:
            return None
        at = max(counts - LEAD, (self._asked_at or 0.0) + RECENT)
        return at if at < counts else None

    # -- the loop's side -----------------------------------------------------------------------------------

    def child(self, pid: int, status: int) -> bool:
        return self._tools.ended(pid, status)

    def idle(self, now: float) -> None:
        self._tools.late(now)
        if self._warned_by is not None and now >= self._warned_by[0]:
            source = self._warned_by[1]
            self._warned_by = None
            self._tell_unanswered(f"no answer within {QUICK:g} s", True)
            super().warned(source)
        if self._hold_until is not None and now >= self._hold_until:
            self._know(self.end)
        if self._ask_at is not None and now >= self._ask_at and not self._pending:
            self._ask(now, PATIENT)
        recheck = self._recheck_at(now)
        if recheck is not None and now >= recheck:
            self._ask(now, QUICK)

    def due(self) -> float | None:
        warned_by = self._warned_by[0] if self._warned_by is not None else None
        ask_at = None if self._pending else self._ask_at
        dues = (
            self._tools.next_due(),
            warned_by,
            ask_at,
            self._recheck_at(time.monotonic()),
            self._hold_until,
            self._last.due(),
        )
        return min((due for due in dues if due is not None), default=None)

    def ending(self, code: int, ledger: Ledger) -> None:
        self._last.begin(code, ledger)

    def close(self) -> None:
        self._tools.close()

    def may_go(self, now: float) -> bool:
        return self._last.may_go(now)


def _deaf_shell(env: Mapping[str, str]) -> int | None:
    """The batch script's own process, where that started this one and would die of SIGTERM; else None."""
    task, step = env.get("SLURM_TASK_PID", ""), env.get("SLURM_STEP_ID", "")
    of_step = step.isdecimal() and int(step) < 1 << 31
    if of_step or task != str(os.getppid()):
        return None
    return None if handles(int(task), signal.SIGTERM) else int(task)
