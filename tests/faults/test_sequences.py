"""Long sequences of events on a fake clock: days of a run's life in milliseconds, with what must always hold."""

from __future__ import annotations

import itertools
import random as randoms
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.faults.scale import WHOLE, chance, scaled, told
from tests.faults.worker import KINDS
from tests.faults.world import World

from outlast_jobs.cadence import SavePolicy
from outlast_jobs.restart import Policy as RestartPolicy
from outlast_supervisor import events as ev
from outlast_supervisor.policy import Policy
from outlast_supervisor.schedulers.requeue import Facts, Left, No, Requeue, verdict
from outlast_supervisor.states import Finished, Running, Starting

CODES = range(256) if WHOLE else (0, 1, 64, 65, 69, 70, 73, 75, 255)
POLICIES = [
    Policy(RestartPolicy(), SavePolicy(None, 600.0)),
    Policy(RestartPolicy(without_progress=2, waiting=60.0), SavePolicy(20, None), grace=60.0, shielded=False),
    Policy(RestartPolicy(sick="continue"), SavePolicy(10, 60.0), grace=5.0, warn=30.0, on_usr1="stop", hang_min=60.0),
]  # fmt: skip
SPANS = (0.01, 1.0, 30.0, 700.0, 4000.0, 90_000.0)
DAY = 86_400.0


class Days(RuleBasedStateMachine):
    """What people, the cluster and bad luck may do to a run, in any order."""

    sequences = 0
    days = 0.0

    @initialize(
        policy=st.sampled_from(POLICIES), step=st.sampled_from((0.5, 5.0, 60.0)), kind=st.sampled_from(KINDS)
    )
    def begin(self, policy: Policy, step: float, kind: str) -> None:
        Days.sequences += 1
        self.world = World(policy, step_time=step, kind=kind)
        self.number = itertools.count()
        self.began = self.world.now
        self.world.start()

    def _asked(self) -> str:
        request = f"r{next(self.number)}"
        self.world.asked.add(request)
        self.world.odd()
        return request

    @rule(seconds=st.sampled_from(SPANS))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(kind=st.sampled_from(KINDS), step=st.sampled_from((0.5, 5.0, 60.0)))
    def the_job_changes(self, kind: str, step: float) -> None:
        self.world.odd()
        self.world.kind, self.world.step_time = kind, step

    @rule()
    def it_is_started(self) -> None:
        self.world.start()

    @rule()
    def it_is_released(self) -> None:
        self.world.release()

    @rule(seconds=st.sampled_from((1.0, 100.0, DAY)))
    def the_machine_is_suspended(self, seconds: float) -> None:
        self.world.stand_still(seconds)

    @rule()
    def the_power_is_cut(self) -> None:
        self.world.power_cut()

    @rule()
    def the_supervisor_is_killed(self) -> None:
        self.world.lose_supervisor()

    @rule(fails=st.booleans())
    def the_disk_fails_or_heals(self, fails: bool) -> None:
        self.world.odd()
        self.world.disk_fails = fails

    @rule(deaf=st.booleans())
    def messages_are_lost_or_not(self, deaf: bool) -> None:
        self.world.odd()
        self.world.deaf = deaf

    @precondition(lambda self: self.world.worker is not None)
    @rule()
    def the_cluster_tells_the_worker_alone(self) -> None:
        self.world.odd()
        if self.world.worker is not None:
            self.world.preempted_last = self.world.worker.kind == "train"
            self.world.worker.stop()

    @precondition(lambda self: self.world.worker is not None)
    @rule()
    def the_worker_is_killed(self) -> None:
        self.world.odd()
        if self.world.worker is not None:
            self.world.worker.kill()

    @precondition(lambda self: self.world.running())
    @rule(what=st.sampled_from(("TERM", "USR1", "INT INT", "save", "stop", "restart")))
    def somebody_asks(self, what: str) -> None:
        world = self.world
        world.odd()
        match what:
            case "TERM":
                world.tell(ev.Notice("SIGTERM"))
            case "USR1":
                world.tell(ev.Warned("SIGUSR1"))
            case "INT INT":
                world.tell(ev.StopNow("a second SIGINT"))
            case "save":
                world.tell(ev.SaveAsked("ann", self._asked()))
            case "stop":
                world.tell(ev.StopAsked("ann", self._asked()))
            case "restart":
                world.tell(ev.RestartAsked("ann", self._asked()))

    @precondition(lambda self: self.world.running())
    @rule(left=st.sampled_from((0.0, 20.0, 300.0, 7200.0)))
    def the_end_is_known(self, left: float) -> None:
        self.world.tell(ev.DeadlineKnown(self.world.now + left, "test"))

    def teardown(self) -> None:
        """Left alone and well for a week a run comes to its end, or is held, or waits to be asked again."""
        world = getattr(self, "world", None)
        if world is None:
            return
        world.disk_fails, world.deaf, world.kind = False, False, "train"
        world.advance(2 * DAY)
        if isinstance(world.state, Starting) and world.worker is not None and world.worker.kind == "hang":
            world.worker.kill()  # its READY was lost: who never attached is never called hung
            world.advance(2 * DAY)
        for _ in range(3):  # a first start may find a deadline that has passed; each start has its own
            world.start()
            world.release()
            world.advance(2 * DAY)
        assert world.done or world.held or (isinstance(world.state, Finished) and world.state.code == 65), (
            world.state
        )
        Days.days += (world.now - self.began) / DAY


def test_whatever_happens_in_whatever_order_nothing_breaks_and_the_run_ends() -> None:
    """Never two attempts, never stuck, budgets hold, every request answered once, and at last it is done."""
    Days.sequences, Days.days = 0, 0.0
    run_state_machine_as_test(
        Days,
        settings=settings(
            max_examples=scaled(30, 800),
            stateful_step_count=scaled(30, 60),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    told("sequences by rules", Days.sequences)
    told("days in them", round(Days.days))


def test_thousands_of_lives_by_dice() -> None:
    """The same by plain chance, which is quicker: kills, notices and failures at Weibull-distributed instants."""
    number, days, attempts, codes = scaled(80, 3000), 0.0, 0, Counter[int]()
    for n in range(number):
        dice = chance(f"life-{n}")
        world = World(dice.choice(POLICIES), step_time=dice.choice((0.5, 5.0, 60.0)), kind=dice.choice(KINDS))
        began = world.now
        world.start()
        for _ in range(scaled(40, 60)):
            world.advance(dice.weibullvariate(600.0, 0.65))
            _mishap(world, dice)
            if isinstance(world.state, Finished):
                codes[world.state.code] += 1
                world.start()
        days, attempts = days + (world.now - began) / DAY, attempts + world.attempts
    assert set(codes) <= {0, 65, 70, 73, 75}
    assert {0, 70, 75} <= set(codes)
    told("lives by dice", number)
    told("attempts in them", attempts)
    told("days in them", round(days))


def _mishap(world: World, dice: randoms.Random) -> None:
    """One of the things that happen."""
    world.odd()
    match dice.randrange(12):
        case 0:
            world.lose_supervisor()
        case 1:
            world.power_cut()
        case 2 | 3 if world.worker is not None:
            world.worker.kill()
        case 4 if world.running():
            world.tell(ev.Notice("SIGTERM"))
        case 5 if world.running():
            world.tell(ev.Warned("SIGUSR1"))
        case 6:
            world.disk_fails = dice.random() < 0.3
        case 7:
            world.kind = dice.choice(KINDS)
        case 8:
            world.stand_still(dice.expovariate(1 / 1000))
        case 9 if world.running():
            world.tell(ev.DeadlineKnown(world.now + dice.expovariate(1 / 1000), "test"))
        case 10:
            world.deaf = dice.random() < 0.3
        case _:
            world.release()


def test_a_deadline_is_honoured_where_a_save_fits() -> None:
    """Told of its end in time, a worker that heeds its signals has saved its last whole step before it."""
    tried = 0
    for policy, step, save in itertools.product(POLICIES, (0.1, 0.5, 1.0, 10.0), (0.1, 0.9, 5.0)):
        if step + save > policy.grace - 1.0:
            continue  # no stop fits into the grace of such a job either
        for trained, left in itertools.product((25, 61, 137), (2.5 * (step + save) + 3.0, 100.0, 400.0)):
            if left < 2.5 * (step + save) + 3.0:
                continue
            world = World(policy, total=10**6, step_time=step, save_time=save)
            world.start()
            world.advance(3.0 + trained * step + trained // 10 * save)
            assert isinstance(world.state, Running)
            end = world.now + left
            world.tell(ev.DeadlineKnown(end, "test"))
            trainer = world.worker
            assert trainer is not None
            world.advance(left)
            tried += 1
            assert isinstance(world.state, Finished), (policy, step, save, trained, left, world.state)
            assert world.state.code == 75
            assert max(g.name.step for g in world.gens) == trainer.step, "steps are lost"
            assert trainer.sealed_at >= end - 6 * (step + save) - 3.0 - policy.grace, "stopped far too early"
    told("deadlines", tried)


def test_a_job_is_queued_again_only_where_that_is_right() -> None:
    """Of all endings of a Slurm job: done, held and cancelled ones stay so, and one whose time was up comes back."""
    tried = 0
    end, warn = 10_000.0, 120.0
    kinds = ("", "signal", "warning", "deadline", "now")
    sources = ("SIGTERM", "SIGINT", "SIGUSR1", "the deadline")
    for code, of, source, told_at, known, policy in itertools.product(
        CODES, kinds, sources, (0.0, end - 200, end - 119, end, end + 30), (None, end),
        ("auto", "slurm", "resubmit", "never"),
    ):  # fmt: skip
        tried += 1
        found = verdict(Facts(code, Left(of, source), told_at, known, warn, policy))
        assert isinstance(found, (Requeue, No))
        assert found.reason
        again = isinstance(found, Requeue)
        if code != 75 or policy == "never" or of in ("", "now"):
            assert not again, (code, of, source)
        if of == "signal" and source == "SIGTERM" and (known is None or told_at < end - warn):
            assert not again, "a cancelled job comes back"
        if code == 75 and policy != "never" and of in ("deadline", "warning"):
            assert again
    told("requeue verdicts", tried)


def test_the_world_is_not_blind() -> None:
    """A table that forgot to kill, or launched beside a survivor, would be seen: the checks themselves are checked."""
    world = World(POLICIES[0])
    world.start()
    world.advance(100.0)
    assert world.worker is not None
    with pytest.raises(AssertionError, match="two attempts"):
        world._spawn(9, ev.Chosen(9, None, None, 0, True, "x", 0))
