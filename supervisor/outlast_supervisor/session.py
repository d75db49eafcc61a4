"""One supervisor's life: its parts are put together, and what the loop hears goes to the right one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from outlast_jobs import __version__
from outlast_jobs import events as journal
from outlast_jobs.contract import Env
from outlast_jobs.filesystem import filesystem_kind
from outlast_jobs.history import History
from outlast_jobs.identity import ProcessIdentity, hostname
from outlast_jobs.jobfile import Job
from outlast_jobs.journal import JournalWriter
from outlast_jobs.locks import RunLock
from outlast_jobs.requests import read_requests
from outlast_jobs.restart import Counters
from outlast_jobs.rundir import RunDirectory

from . import chores, linux
from . import events as ev
from .asks import Asks
from .carry import Carrier
from .choosing import newest_verified
from .deadlines import Deadlines
from .display import Display
from .hooks import Hooks
from .inbox import POLL_SECONDS, Inbox
from .journaler import Journaler
from .launch import Launcher, policy_of
from .loop import Loop
from .mishaps import failed_answer, told
from .notices.watchers import Watchers
from .notify import sweep_sockets
from .options import RunOptions
from .rules_begin import begin
from .schedulers.around import around, is_in_slurm
from .schedulers.watch import Wires
from .standby import Standby
from .startup import write_job
from .states import Ending, Ledger, Running, Starting, State

LOCK_EVERY = 30.0  # seconds between two looks whether the run is still ours, and how far its script is
LISTEN_AFTER = 1.0  # seconds after which requests are looked for, whether or not a worker runs by then
STUCK = 10.0  # seconds; a helper that has been at one short job for so long waits for a dead file system
LAST_WAIT = 60.0  # seconds for a finished run's last generation to be verified, and for the hooks of an end that stays
HOOK_WAIT = 10.0  # for hooks where the machine may be about to go
TIME_LIMIT = "time_limit of the job"


class Session:
    """One supervisor's life for one run whose lock is held."""

    def __init__(
        self,
        options: RunOptions,
        run: RunDirectory,
        run_id: str,
        lock: RunLock,
        known: History,
        digests: dict[str, str],
        former: tuple[RunDirectory, str] | None = None,
        new: bool = False,
    ) -> None:
        self._job, self._run, self._lock, self._known = options.job, run, lock, known
        job = options.job
        self._launcher = launcher = Launcher(
            in_slurm=is_in_slurm(os.environ),
            run=run,
            run_id=run_id,
            job=job,
            extra=options.extra,
            config_sha256=digests["command_digest"],
            allow_rng_loss=options.allow_rng_loss,
            forced=options.from_generation,
        )
        writer = JournalWriter.open(run)  # first: where it cannot be, there is nothing to give back
        self._loop = loop = Loop(policy_of(job, launcher), lambda text: self._display.tell(text, "debug"))
        self._display = Display(run, run_id, loop, launcher, quiet=options.quiet, verbose=options.verbose)
        self._display.exclusion = lock.exclusion
        self._journaler = Journaler(writer, loop.helper("journal"))
        self._chores = loop.helper("chores")
        self._pulse = loop.helper("pulse")  # what is short and has its time: status, lease, requests
        self._hooks = Hooks(_commands(job), run.path)
        desk = chores.Desk(run, run_id, self._journaler.note_and_wait, _plain_stats(known), set(known.pins))
        desk.lock_named = lock.is_named
        self._display.taken = lambda: bool(chores.taken_over(desk))
        mark = {Env.RUN: str(run.path.absolute()), Env.RUN_ID: run_id}
        self._standby = Standby(loop.attend, loop.neglect, self._display.tell, mark)
        self._display.standby = self._standby.view
        self._carrier = Carrier(
            loop=loop,
            desk=desk,
            journaler=self._journaler,
            launcher=launcher,
            chores=self._chores,
            pulse=self._pulse,
            verifier=loop.helper("verifier", nice=10),
            hooks=self._hooks,
            tell=self._display.tell,
            finish=self._finish,
            note_data=self._note_data,
            standby=self._standby,
            former=former,
            new=new,
        )
        self._deadlines = Deadlines(launcher, self._carrier.note, loop.post)
        self._around = around(
            Wires(loop, self._deadlines, launcher, self._carrier.note, self._display.tell, self._hooks.mark)
        )
        self._display.around = self._around
        know, tell = self._deadlines.know, self._display.tell
        self._notices = Watchers(loop.attend, loop.neglect, know, loop.post, tell)
        self._carrier.ours = lambda pid: self._notices.theirs(pid) or self._standby.theirs(pid)
        self._asks = Asks(loop, self._carrier, launcher, digests, self._display.manager, known.answers)
        self._asks.on_adopted, self._asks.on_warned = self._adopted, self._around.warned
        self._inbox = Inbox(run, filesystem_kind(run.path).network, self._wake_for_requests)
        self._began = time.monotonic()
        self._watching = self._requests_waiting = False
        self._look_at: float | None = None
        self._lease_at = self._next_lease(time.monotonic())
        self._lock_at = self._began + LOCK_EVERY
        self._lock_missed = False
        self._quiet = options.quiet
        self._exit_code: int | None = None
        self._finish_by = 0.0
        self._at_once = False

    # -- life ----------------------------------------------------------------------------------------------

    def run(self, opening: list[tuple[str, dict[str, Any]]]) -> int:
        """Supervise until the end; ``opening`` are records of what led here. Returns the exit code."""
        with contextlib.suppress(OSError):  # without it orphans are found by their environment alone
            linux.become_subreaper()
        self._begin_journal(opening)
        loop = self._loop
        loop.carry = self._carry
        loop.on_signal, loop.on_child = self._signal, self._child
        loop.on_result, loop.on_idle = self._result, self._idle
        loop.on_pause, loop.on_jump = self._paused, self._jumped
        loop.dues += [lambda: self._journaler.next_due, lambda: self._carrier.launch_due]
        loop.dues += [self._own_due, self._around.due]
        loop.listen(self._asks.numbers())
        self._limit(self._job)
        self._around.begin()
        self._notices.want(self._job.notices, self._began)
        ledger = Ledger(
            attempt=max(self._known.highest_attempt, self._run.highest_attempt()),
            counters=Counters.from_dict(self._known.counted),
            verified=newest_verified(self._carrier.desk),
            resume=self._known.next_resume or "newest",
            past=self._known.past,
            saves=self._known.saves,
        )
        vanished = self._known.vanished
        cause = f"attempt {vanished.number} vanished on {vanished.host}" if vanished else "start"
        loop.run(*begin(ledger, time.monotonic(), cause))
        dead = self._journaler.unjournaled or self._pulse.stuck(time.monotonic()) >= STUCK
        gone = loop.state is not None and bool(loop.state.ledger.gone)  # whoever has it now tells its status
        self._display.last(self._journaler, write=not (dead or gone))
        self._inbox.close()
        self._around.close()
        self._notices.close()
        loop.close()
        return self._exit_code if self._exit_code is not None else 1

    def _begin_journal(self, opening: list[tuple[str, dict[str, Any]]]) -> None:
        data = {"identity": str(ProcessIdentity.current()), "version": __version__, **self._asks.digests}
        self._carrier.note(journal.SUPERVISOR_STARTED, data)
        for event, more in opening:
            self._carrier.note(event, more)

    def _finish(self, code: int, reason: str, at_once: bool) -> None:
        """The decision to end: it is recorded, and what is under way may come to its end."""
        if at_once:
            self._finish_by, self._at_once = time.monotonic(), True
        if self._exit_code is not None:
            return
        self._exit_code = code
        self._standby.close()
        self._carrier.note(journal.SUPERVISOR_STOPPED, {"code": code, "reason": reason})
        self._finish_by = time.monotonic() + (LAST_WAIT if code in (0, 70) else HOOK_WAIT)
        self._display.tell(reason, "error" if self._is_news(code, reason) else "info")
        if self._loop.state is not None:
            self._around.ending(code, self._loop.state.ledger)

    def _is_news(self, code: int, reason: str) -> bool:
        """Whether an end is an error that nobody knows of; cron mails what a quiet start says, every few minutes."""
        by_hand = self._loop.state is not None and self._loop.state.ledger.holding
        if code in (0, 75) or (code == 70 and by_hand):
            return False
        life = self._known.life  # the start before this one
        same = life is not None and (life.code, life.reason) == (code, reason)
        return not (self._quiet and code != 70 and same)

    def _may_stop(self, now: float) -> bool:
        if self._exit_code is None:
            return False
        helpers = [self._chores, self._pulse]
        if self._exit_code == 0:  # the last generation is verified and pruned after before we go
            helpers.append(self._carrier.verifier)
        left = bool(self._hooks.pids or self._journaler.waiting or self._standby.pending)
        busy = left or any(helper.pending for helper in helpers)
        if self._journaler.unjournaled or self._pulse.stuck(now) >= STUCK:
            busy = bool(self._hooks.pids)  # nothing is waited for that a dead or full disk holds
        if busy and now < self._finish_by:
            return False
        if not (self._at_once or self._around.may_go(now)):
            self._finish_by = now + HOOK_WAIT  # for what it still has to write
            return False
        return True

    # -- what the loop calls -------------------------------------------------------------------------------

    def _carry(self, state: State, actions: tuple[Any, ...]) -> None:
        self._carrier.carry(actions)
        if isinstance(state, Ending):
            self._display.keep(self._journaler)
        elif isinstance(state, Starting):  # only now: it must not delay the worker
            self._watch()
        elif isinstance(state, Running) and state.live.attached:
            self._standby.want(self._job, time.monotonic(), tight=state.ledger.counters.tight)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._inbox.watch()
            self._around.ask()
            self._chores.submit("job", lambda: write_job(self._run, self._job))
            for sweep in (self._run.sweep, sweep_sockets):
                self._carrier.verifier.submit("quiet", sweep)  # the one that nobody waits for

    def _signal(self, number: int) -> None:
        self._around.heard(number)
        self._asks.signal(number)

    def _child(self, pid: int, status: int) -> None:
        if self._around.child(pid, status):
            return
        hook = self._hooks.ended(pid)
        code = os.waitstatus_to_exitcode(status)
        if self._carrier.was_standby(pid, code):  # first: its last word may be that it is the worker by now
            return
        if hook is not None:
            self._carrier.note(journal.HOOK, {"name": hook, "code": code})
        elif pid == self._carrier.worker_pid:
            self._carrier.worker_pid = 0
            self._loop.post(ev.WorkerExited(code if code >= 0 else None, -code if code < 0 else None))
        elif not self._notices.ended(pid, code):
            self._carrier.look_again()

    def _result(self, tag: str, result: Any, error: BaseException | None) -> None:
        if tag == "journal":
            self._journaler.delivered(error)
            self._carrier.settle()
        elif tag == "status":
            self._display.writing = False
        elif tag == "opened":
            self._carrier.opened(result, error)
        elif error is not None:
            if tag != "lock":  # which is looked at again: an outage says enough by itself
                self._display.tell(told(tag, error), "warning")
            self._look_at = time.monotonic() + POLL_SECONDS  # nobody tells again of a request
            # an answer that never comes would leave a state waiting for ever
            if (answer := failed_answer(tag, error)) is not None:
                self._loop.post(answer)
        elif tag == "lock":
            self._lock_seen(result)
        elif tag == "lease" and not result:
            text = "another supervisor has taken this run: its lease is lost"
            self._loop.post(ev.RunGone(text, taken=True))
        elif tag == "requests":
            self._asks.take(result)
        elif tag == "job" and result:
            changes = ["the job as resolved differs from the one before"]
            self._carrier.note(journal.JOB_CHANGED, {**self._asks.digests, "changes": changes})
        elif tag == "reload":
            self._asks.reloaded(result)
        elif tag == "pinned":
            self._asks.pinned(result)
        elif tag == "finished":
            self._carrier.save_finished(*result)
        elif tag in ("event", "cleared", "chosen", "examined") and result is not None:
            self._loop.post(result)
        elif tag == "pruned" and result:
            self._display.tell(f"pruned {', '.join(result)}", "debug")
            if self._loop.state is not None and self._loop.state.ledger.unprotected:
                self._loop.post(ev.SaveAsked("pruning, which made room", ""))

    def _idle(self, now: float) -> None:
        """Between two sleeps: what is due by the clock and is no decision."""
        self._journaler.tick()
        self._carrier.settle()
        for pid in self._hooks.late(now):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if now >= self._began + LISTEN_AFTER:
            self._watch()
        if self._lease_at is not None and now >= self._lease_at:
            self._lease_at = self._next_lease(now)
            self._pulse.submit("lease", self._lock.renew)
        if now >= self._lock_at:
            self._lock_at = now + LOCK_EVERY
            self._pulse.submit("lock", self._lock.is_named)
            if not self._carrier.verifier.pending:  # a checkpoint may take longer than that to read
                self._carrier.look_at_script(self._carrier.verifier)
            self._requests_waiting = True  # the kernel's word of one may be lost
        if self._requests_waiting or (self._look_at is not None and now >= self._look_at):
            self._requests_waiting = False
            self._look_at = now + self._inbox.poll if self._inbox.poll else None
            self._pulse.submit("requests", lambda: read_requests(self._run))
        self._notices.tick(now)
        self._standby.tick(now)
        self._display.stuck = self._pulse.stuck(now)
        self._display.unkillable = self._carrier.unkillable
        self._around.idle(now)
        self._display.show(now, self._pulse, self._journaler)
        if self._may_stop(now):
            self._loop.stopped = True

    def _own_due(self) -> float | None:
        dues = [
            self._display.next_due(),
            self._lock_at,
            self._look_at,
            self._lease_at,
            self._hooks.next_due(),
            self._notices.next_due(),
            self._standby.next_due(),
        ]
        if not self._watching:
            dues.append(self._began + LISTEN_AFTER)
        if self._exit_code is not None:
            dues.append(self._finish_by)
        return min(due for due in dues if due is not None)

    def _paused(self, seconds: float) -> None:
        self._journaler.stood_still(seconds)
        self._carrier.note(journal.PAUSED, {"seconds": round(seconds, 3)})
        self._around.resumed()

    def _jumped(self, seconds: float, suspended: bool) -> None:
        self._around.jumped()
        event = journal.PAUSED if suspended else journal.CLOCK_JUMPED
        self._carrier.note(event, {"seconds": round(seconds, 3)})
        what = "the machine was suspended for {:.0f} s" if suspended else "the clock jumped by {:+.0f} s"
        self._display.tell(f"{what.format(seconds)}; no duration is touched by that", "warning")

    def _adopted(self, job: Job) -> None:
        """The job file was read again."""
        before, self._job = self._job, job
        self._hooks.replace(_commands(job))
        self._notices.want(job.notices, time.monotonic())
        if job.stop.time_limit != before.stop.time_limit:
            self._limit(job)

    def _limit(self, job: Job) -> None:
        limit = job.stop.time_limit
        self._deadlines.know(TIME_LIMIT, self._began + limit if limit is not None else None)

    def _note_data(self, event: str, data: dict[str, Any]) -> dict[str, Any]:
        """Complete a record with what the state table does not know."""
        digests = self._asks.digests
        if event == journal.HELD:
            return {**data, "job_digest": digests["job_digest"], "code_digest": digests["code_digest"]}
        if event == journal.DONE:
            return {**data, "command_digest": digests["command_digest"]}
        if event == journal.ATTEMPT_STARTED:
            return {**data, "host": hostname()}
        return data

    def _wake_for_requests(self) -> None:
        self._requests_waiting = True
        self._loop.wake()

    # -- the second line of exclusion ----------------------------------------------------------------------

    def _next_lease(self, now: float) -> float | None:
        beat = self._lock.heartbeat
        return now + beat if beat is not None else None

    def _lock_seen(self, named: bool | None) -> None:
        """The lock is an open file; whoever finds another one in its place, or none, can take the run."""
        if named or (named is None and not self._lock_missed):
            self._lock_missed = named is None  # a mount may come back
            return
        what = "removed or moved away" if named is None else "replaced by another"
        self._loop.post(ev.RunGone(f'the run directory "{self._run.path}" was {what}'))


def _plain_stats(known: History) -> dict[str, dict[str, list[int]]]:
    return {name: dict(stats) for name, stats in known.remembered.items()}


def _commands(job: Job) -> dict[str, str | None]:
    return {name: getattr(job.hooks, name) for name in ("given_up", "unprotected", "hung", "done")}
