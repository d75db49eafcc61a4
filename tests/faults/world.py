"""A small world on a fake clock, in which the state table decides: a disk, a journal, a worker, a cluster.

It carries out what was decided as the real parts do, and holds against it what is true in it: who lives, what is
saved, what was asked and answered. A breach is an AssertionError. Days pass in milliseconds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.worker import Worker

from outlast_jobs import events as journal
from outlast_jobs.generation import GenerationName
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Counters
from outlast_jobs.retention import Gen, plan
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.policy import Context, Policy
from outlast_supervisor.rules_begin import begin
from outlast_supervisor.states import Finished, Ledger, Running, Starting, State, Stopping, Waiting
from outlast_supervisor.table import decide
from outlast_supervisor.timers import next_due

MOST_TICKS = 50  # at one instant: more is a loop that spins
LATE = 1e-5  # seconds: no timer comes at the very instant, where a float may be one bit short
SLACK = 5.0  # seconds for helpers and repeated kills


@dataclass
class Keep:
    """The retention policy of every run here."""

    last: int = 2
    every_steps: int | None = 50
    max_bytes: int | None = None


@dataclass
class World:
    """One run, from its first start on. ``kind`` is what the workers of coming attempts do."""

    policy: Policy
    total: int = 200
    kind: str = "train"
    step_time: float = 5.0
    save_time: float = 1.0
    now: float = 1000.0
    state: State | None = None
    worker: Worker | None = None
    strays: int = 0  # processes that only KILL ends
    disk_fails: bool = False
    deaf: bool = False  # no message of a worker arrives
    gens: list[Gen] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    counters: Counters = field(default_factory=Counters)
    attempt: int = 0
    resume: str = "newest"
    held: bool = False
    done: bool = False
    life: int = 0
    attempts: int = 0
    preempted_last: bool = False  # the newest attempt ended by the cluster's or a person's wish, or was lost
    odd_at: float = 0.0  # when anything but plain training happened last
    _queue: list[tuple[float, int, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    _stopping_since: float | None = None
    _failures: int = 0  # in a row, without progress
    _first_failure_at: float = 0.0
    _cut_short: bool = False  # a wait between attempts was
    ticks: int = 0

    # -- time ----------------------------------------------------------------------------------------------

    def after(self, seconds: float, do: Callable[[], None], life: int = 0) -> None:
        """Do something later; with a life only if that supervisor still lives then."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, life, do))

    def advance(self, seconds: float) -> None:
        """Let time pass: timers, the worker and the helpers do what they do."""
        end, ticks_here = self.now + seconds, 0
        while True:
            due = next_due(self.state, self.policy, self.now) if self.state is not None else None
            event = self._queue[0][0] if self._queue else None
            due = due + LATE if due is not None else None
            soonest = min((t for t in (due, event) if t is not None), default=None)
            if soonest is None or soonest > end:
                self.now = end
                return
            if soonest > self.now:
                self.now, ticks_here = soonest, 0
            if event is not None and event <= self.now:
                _, _, life, do = heapq.heappop(self._queue)
                if life in (0, self.life):
                    do()
            else:
                ticks_here += 1
                self.ticks += 1
                assert ticks_here < MOST_TICKS, f"the loop spins in {self.state}"
                self.tell(ev.Tick())
            self._watch()

    def stand_still(self, seconds: float) -> None:
        """The machine is suspended."""
        self.odd()
        self._queue = [(t + seconds, n, life, do) for t, n, life, do in self._queue]
        self.now += seconds
        if self._stopping_since is not None:
            self._stopping_since += seconds
        if self.worker is not None:
            self.worker.silent_at += seconds
        self.tell(ev.Paused(seconds))

    def odd(self) -> None:
        """From here on nothing is taken for plain training for a while."""
        self.odd_at = self.now

    # -- the supervisor ------------------------------------------------------------------------------------

    def start(self) -> None:
        """`outlast run`."""
        if self.held or self.done or self.running():
            return
        self.odd()
        self.life += 1
        ledger = Ledger(attempt=self.attempt, counters=self.counters, resume=self.resume)
        self.state, actions = begin(ledger, self.now)
        self._carry(actions)

    def running(self) -> bool:
        return self.state is not None and not isinstance(self.state, Finished)

    def tell(self, event: ev.Event) -> None:
        """Something happens to the supervisor, if there is one."""
        if self.state is None:
            return
        before = self.state
        self.state, actions = decide(before, event, Context(self.policy, self.now, 0.5))
        if isinstance(self.state, Stopping) != isinstance(before, Stopping):
            self._stopping_since = self.now if isinstance(self.state, Stopping) else None
        if (
            isinstance(before, Waiting)
            and not isinstance(self.state, Waiting)
            and not isinstance(event, ev.Tick)
        ):
            self._cut_short = True
        self._carry(actions)

    def lose_supervisor(self) -> None:
        """SIGKILL for the supervisor alone: its worker notices, saves and goes."""
        self.odd()
        self.life += 1
        self.state, self._stopping_since = None, None
        self.asked.clear()
        if self.worker is not None:
            self.worker.stop()
        self.preempted_last = True

    def power_cut(self) -> None:
        """Everything is gone at once."""
        self.lose_supervisor()
        if self.worker is not None:
            self.worker.alive = False
        self.worker, self.strays = None, 0

    def release(self) -> None:
        """`outlast run --release`: the counters begin anew."""
        if self.held:
            self.held, self.counters, self._failures = False, Counters(), 0
            self.start()

    # -- what must hold at every moment ----------------------------------------------------------------------

    def _watch(self) -> None:
        state = self.state
        if state is None or isinstance(state, Finished):
            return
        due = next_due(state, self.policy, self.now)
        mine = any(life in (0, self.life) for _, _, life, _ in self._queue)
        alive = self.worker is not None and isinstance(state, (Starting, Running, Stopping))
        assert due is not None or mine or alive, f"nothing will ever happen in {state}"
        if self._stopping_since is not None and self.worker is not None:
            most = max(self.policy.grace, 1.0) + 2.0 + SLACK + 11.0 * (state.live.hung != "")  # type: ignore[union-attr]
            assert self.now - self._stopping_since <= most, (
                f"a stop takes {self.now - self._stopping_since} s"
            )
        worker = self.worker
        if isinstance(state, Running) and worker is not None and worker.kind == "hang":
            patience = max(3 * self.policy.hang_min, 10 * worker.longest) + 40.0
            assert self.now - worker.silent_at <= patience, f"hung for {self.now - worker.silent_at} s"

    # -- carrying out ----------------------------------------------------------------------------------------

    def _carry(self, actions: tuple[act.Action, ...]) -> None:
        for action in actions:
            self._do(action)

    def _later(self, seconds: float, make: Callable[[], ev.Event | None]) -> None:
        def do() -> None:
            if (event := make()) is not None:
                self.tell(event)

        self.after(seconds, do, self.life)

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Note(event, data):
                self._record(event, dict(data))
            case act.EndLeftovers(how):
                if how == "kill":
                    self.strays = 0
                if self.worker is not None and how != "look":
                    self.worker.kill() if how == "kill" else self.worker.stop()
                self._later(0.02, self._left)
            case act.Choose():
                self._later(0.2, lambda: self._choose(action))
            case act.Spawn(attempt, chosen, _):
                self._spawn(attempt, chosen)
            case act.SignalTrainers(role) | act.SignalWorker(role):
                if self.worker is not None and role != "stacks":
                    self.worker.stop() if role == "stop" else self.worker.save()
            case act.SignalAll(how):
                self.strays = 0 if how == "kill" else self.strays
                if self.worker is not None:
                    self.worker.kill() if how == "kill" else self.worker.stop()
            case act.Examine(attempt):
                self._later(0.1, lambda: self._examined(attempt))
            case act.Look(attempt):
                if not self.disk_fails:
                    self._later(0.1, lambda: self._looked(attempt))
            case act.Verify(name):
                self._later(1.0, lambda: self._verified(name))
            case act.SetAside(name, _):
                self.gens = [g for g in self.gens if str(g.name) != name]
            case act.Prune(resumed_from):
                self._prune(resumed_from)
            case act.Answer(request, _, _) if request:
                assert request in self.asked, f"{request} was not asked, or is answered again"
                self.asked.discard(request)
                self.answers[request] += 1
                assert self.answers[request] == 1
            case act.Exit(code, _, _):
                self._exit(code)

    def _record(self, event: str, data: dict[str, Any]) -> None:
        match event:
            case journal.ATTEMPT_STARTED:
                self.attempt = data["attempt"]
            case journal.ATTEMPT_ENDED:
                self.counters, self.resume = Counters.from_dict(data["counters"]), data["next"]
                self._count(data["outcome"])
            case journal.HELD:
                self.held = True
            case journal.DONE:
                self.done = True
            case journal.GAVE_UP:
                self._may_give_up(data["reason"])

    def _count(self, outcome: str) -> None:
        progressed = any(g.name.attempt == self.attempt for g in self.gens) or outcome == "crashed_progress"
        self.preempted_last = self.preempted_last or outcome == "saved"
        if progressed:
            self._failures, self._cut_short = 0, False
        elif outcome in ("crashed", "hung", "sick"):
            self._failures += 1
            if self._failures == 1:
                self._first_failure_at = self.now

    def _may_give_up(self, reason: str) -> None:
        assert not self.preempted_last, f"given up after a preemption: {reason}"
        if any(
            word in reason for word in ("deterministic", "sick:", "never_on", "while restoring", "replay")
        ):
            return
        assert self._failures >= self.policy.restart.without_progress, reason
        if not self._cut_short:
            waited = self.now - self._first_failure_at
            assert waited >= self.policy.restart.waiting - SLACK, f"given up after {waited} s: {reason}"

    def _exit(self, code: int) -> None:
        assert not self.asked, f"the end comes and {self.asked} have no answer"
        mine = self.worker is not None and self.worker.life == self.life
        assert not mine, "the supervisor ends and its worker lives"
        assert code in (0, 65, 70, 73, 75)
        assert (code == 0) == self.done
        assert (code == 70) == self.held

    def _left(self) -> ev.Event:
        return ev.LeftoversRemain((7,)) if self.worker is not None or self.strays else ev.LeftoversGone()

    def _choose(self, order: act.Choose) -> ev.Event:
        if self.disk_fails:
            return ev.ChooseFailed("EIO", "")
        names = sorted((g.name for g in self.gens if g.healthy or order.resume != "healthy"), reverse=True)
        name = names[1] if order.resume == "older" and len(names) > 1 else next(iter(names), None)
        attempt = max(order.attempt, self.attempt + 1)
        if name is None:
            return ev.Chosen(attempt, None, None, 0, True, "no generation yet", 0)
        return ev.Chosen(attempt, str(name), f"/{name}", name.step, True, "the newest", 0)

    def _spawn(self, attempt: int, chosen: ev.Chosen) -> None:
        ledger = self.state.ledger if self.state is not None else Ledger()
        assert self.worker is None, "two attempts alive"
        assert not self.strays, "an attempt starts beside what is left of the one before"
        assert not self.held, "a held run starts"
        assert not ledger.leaving, "an attempt starts although the supervisor has to go"
        assert not ledger.holding, "an attempt starts although a person stopped the run"
        if chosen.name is not None:
            assert any(str(g.name) == chosen.name for g in self.gens), "what is resumed from is gone"
        self.preempted_last = False

        def spawned() -> ev.Event:
            if self.kind == "noexec":
                return ev.SpawnFailed("ENOENT")
            self.attempts += 1
            self.worker = Worker(self, attempt, self.life, chosen.step, chosen.name, self.kind)
            return ev.Spawned(ProcessIdentity(attempt, attempt, "boot"))

        self._later(0.05, spawned)

    def _examined(self, attempt: int) -> ev.Event:
        sealed = [g.name.step for g in self.gens if g.name.attempt == attempt]
        return ev.Examined(
            max(sealed, default=None), self.total in sealed, max(sealed, default=0), None, "tail"
        )

    def _looked(self, attempt: int) -> ev.Event | None:
        worker = self.worker
        if worker is None or worker.attempt != attempt:
            return None
        age = self.now - worker.silent_at if worker.step > worker.begun else None
        newest = max((g.name for g in self.gens if g.name.attempt == attempt), default=None)
        sealed = ev.Sealed(str(newest), newest.step, 1, self.save_time) if newest else None
        return ev.Looked(worker.step if age is not None else 0, age, sealed, self.now - worker.sealed_at)

    def _verified(self, name: str) -> ev.Event | None:
        found = [g for g in self.gens if str(g.name) == name]
        if not found:
            return None
        self.gens = [Gen(g.name, True, g.healthy, 1) if str(g.name) == name else g for g in self.gens]
        return ev.Verified(name, found[0].healthy)

    def _prune(self, resumed_from: str | None) -> None:
        gone = {name for name, _ in plan(self.gens, Keep(), set(), resumed_from, True).drop}
        newest = max((g.name for g in self.gens), default=None)
        assert str(newest) not in gone
        self.gens = [g for g in self.gens if str(g.name) not in gone]

    # -- what the worker does to the world ---------------------------------------------------------------------

    def heard(self, worker: Worker, event: ev.Event) -> None:
        """A message: it arrives where its supervisor still lives and the channel works."""
        if worker.life == self.life and not self.deaf:
            self.tell(event)

    def seal(self, worker: Worker, healthy: bool) -> str | None:
        """A save comes to its end; None where the disk fails it."""
        if self.disk_fails:
            return None
        name = GenerationName(worker.step, worker.attempt)
        if all(g.name != name for g in self.gens):
            self.gens.append(Gen(name, False, healthy, 1))
        return str(name)

    def ended(self, worker: Worker, code: int | None, number: int | None) -> None:
        """The worker's first process is gone."""
        if worker.kind == "strays":
            self.strays = 1
        self.worker = None
        if worker.life == self.life:
            self.tell(ev.WorkerExited(code, number))
