"""The last act of a supervisor in a Slurm job: have the job queued again, where that is right.

It comes when nothing of the attempt is left and the journal is on disk, since Slurm ends the job for it: SIGCONT and
SIGTERM at once, SIGKILL after KillWait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast_jobs import events as journal
from outlast_jobs.contract import ExitCode
from outlast_jobs.jobfile import Slurm

from ..states import Ledger
from . import slurm
from .requeue import Facts, How, Left, No, Requeue, asks_controller, verdict
from .slurm import Place
from .tools import Outcome, Tools

if TYPE_CHECKING:
    from .watch import Wires

ANSWER = 5.0  # seconds for the controller to say what has become of the job
TRY = 20.0  # seconds for one try; a client gives up a dead controller by itself after MessageTimeout, 10 s by default
BACKOFF = (1.0, 30.0)
# A controller that is restarted or fails over is back within minutes. Until the job's end the node is ours in any
# case; beyond an hour it is an outage that a person has to see to, and the node stands idle for it.
LEAST, MOST = 600.0, 3600.0
BEYOND = 60.0  # seconds past the job's end: Slurm looks for ends twice a minute


class Last:
    """From the decision to end until the job is queued again, or is not going to be."""

    def __init__(
        self,
        wires: Wires,
        place: Place,
        tools: Tools,
        env: Mapping[str, str],
        end: Callable[[], float | None],
    ) -> None:
        self._wires, self._place, self._tools, self._env, self._end = wires, place, tools, env, end
        self.text = ""
        """In words for people, what came of it."""
        self._facts: Facts | None = None
        self._heard_at: dict[str, float] = {}  # unix seconds, of the first of each signal
        self._began = False
        self._busy = False  # a tool runs
        self._settled = False
        self._ways: list[How] = []
        self._failed: list[str] = []
        self._next_at: float | None = None
        self._backoff = BACKOFF[0]
        self._until = 0.0

    def begin(self, code: int, ledger: Ledger) -> None:
        """The supervisor ends; nothing is done yet."""
        now = time.time()
        job = self._wires.launcher.job
        self._facts = Facts(
            code=code,
            left=Left(ledger.leaving_of, ledger.leaving),
            told_at=self._heard_at.get(ledger.leaving, now),
            end=self._end(),
            warn=self._wires.loop.policy.warn,
            policy=(job.slurm or Slurm()).requeue,
            by_hand=self._place.by_hand,
            restarts=self._place.restarts,
        )
        end = self._facts.end
        least = now + LEAST if end is None else max(now + LEAST, end + BEYOND)
        self._until = time.monotonic() + min(least - now, MOST)

    def heard(self, name: str) -> None:
        """A signal: while nothing was asked of Slurm yet, TERM may be a cancel and INT is a person's word."""
        self._heard_at.setdefault(name, time.time())
        if not self._began or self._settled or self._busy or self._facts is None:
            return
        if name in ("SIGTERM", "SIGINT", "SIGQUIT"):
            self._facts = replace(self._facts, left=Left("signal", name), told_at=time.time(), job=None)
            self._next_at = None
            self._ask()

    def due(self) -> float | None:
        """When to try again; what is due already waits for the journal alone, and is no reason to wake."""
        if self._busy or self._settled or self._next_at is None or self._next_at <= time.monotonic():
            return None
        return self._next_at

    def may_go(self, now: float) -> bool:
        """Whether all is done; the first call is the beginning."""
        if self._facts is None or self._settled:
            return True
        if not self._began:
            self._began = True
            if asks_controller(self._facts):
                self._ask()
            else:
                self._decide()
        elif not self._busy and self._next_at is not None and now >= self._next_at:
            self._next_at = None
            self._try()
        return self._settled

    # -- deciding ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._start(slurm.job_query(self._place.job), ANSWER, self._answered)

    def _answered(self, outcome: Outcome) -> None:
        job = slurm.read_job(outcome)
        if isinstance(job, slurm.Job) and self._facts is not None:
            self._facts = replace(self._facts, job=job)
        self._decide()

    def _decide(self) -> None:
        if self._facts is None:
            return
        match verdict(self._facts):
            case No(reason):
                self._wires.note(journal.REQUEUE, {"how": "none", "reason": reason})
                level = "debug" if self._facts.code == ExitCode.DONE else "info"
                self._settle(f"{self._place.name} is not queued again: {reason}", level)
            case Requeue(how, reason):
                self._ways = list(how)
                self._wires.note(journal.REQUEUE, {"how": how[0], "reason": reason})
                self._next_at = 0.0  # at the next look, when that record is on disk
        self._wires.loop.wake()

    # -- doing ---------------------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._ways[0] == "requeue":
            self._start(slurm.requeue(self._place.job), TRY, self._tried)
            return
        self._start(slurm.script_query(self._place.job), ANSWER, self._script)

    def _script(self, outcome: Outcome) -> None:
        """The job's own script is the form that ran; without scontrol, the one that `outlast slurm` prints."""
        if slurm.may_pass(outcome):
            self._tried(outcome)
            return
        text = f"{outcome.out}\n"
        if not (outcome.ok and text.startswith("#!")):
            from .slurm_script import slurm_script

            job = self._wires.launcher.job
            try:
                text = slurm_script(job, run_dir=job.run_dir, extra=self._wires.launcher.extra).text
            except ValueError as error:
                self._tried(Outcome("failed", err=f"{slurm.short(outcome.err)}; {error}"))
                return
        words = slurm.resubmit(self._place, self._facts.job if self._facts else None, text)
        self._start(words, TRY, self._tried, env=slurm.submit_env(self._env), stdin=text)

    def _tried(self, outcome: Outcome) -> None:
        way, now = self._ways[0], time.monotonic()
        if way == "requeue" and slurm.is_queued(outcome):
            self._queued("queued again")
        elif way == "resubmit" and outcome.ok:
            self._queued(f"submitted again as job {slurm.short(outcome.out, 40)}")
        elif slurm.may_pass(outcome) and now < self._until:
            self._next_at = now + self._backoff
            self._wires.tell(
                f"{self._place.name} is not queued again yet: {slurm.short(outcome.err)}; "
                f"trying again in {self._backoff:.0f} s",
                "warning",
            )
            self._backoff = min(2 * self._backoff, BACKOFF[1])
        else:
            self._failed.append(slurm.short(outcome.err))
            self._ways = [] if slurm.is_no_batch_job(outcome) else self._ways[1:]
            if self._ways:
                self._next_at = 0.0
            else:
                self._give_up()
        self._wires.loop.wake()

    def _queued(self, text: str) -> None:
        self._wires.note(journal.REQUEUED, {"ok": True, "how": self._ways[0], "text": text})
        self._settle(f"{self._place.name}: {text}", "info")

    def _give_up(self) -> None:
        why = "; ".join(self._failed)
        self._wires.note(journal.REQUEUED, {"ok": False, "how": "none", "text": why})
        self._settle(
            f"{self._place.name} could not be queued again: {why}; submit the job once more, it goes on from "
            "its newest generation",
            "error",
        )

    def _settle(self, text: str, level: str) -> None:
        self._settled = True
        self.text = text
        self._wires.tell(text, level)

    def _start(
        self,
        words: tuple[str, ...],
        seconds: float,
        then: Callable[[Outcome], None],
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> None:
        self._busy = True

        def ended(outcome: Outcome) -> None:
            self._busy = False
            then(outcome)

        self._tools.start(words, env or slurm.query_env(self._env), time.monotonic(), seconds, ended, stdin)
