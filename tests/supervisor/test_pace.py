"""Where the job leaves the cadence open, the supervisor asks for each save, at an interval that follows the run."""

from __future__ import annotations

from msgspec.structs import replace
from tests.supervisor.tables import context, running

from outlast_jobs.pacing import Past, automatic
from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.conclude import conclude
from outlast_supervisor.pace import interval, paced
from outlast_supervisor.policy import Context
from outlast_supervisor.snapshot import Facts, snapshot
from outlast_supervisor.states import Ending, Ledger, Running
from outlast_supervisor.table import decide
from outlast_supervisor.timers import next_due
from outlast_supervisor.views import Facts as Around
from outlast_supervisor.views import row

BETWEEN = (30.0, 7200.0)
KNOWN = Past(up=40_000, lost=4, costs=(5.0,))


def auto(now: float) -> Context:
    return context(now, between=BETWEEN)


def worker(past: Past = KNOWN, **changes: object) -> Running:
    base = running(attached=True, **changes)
    return replace(base, ledger=replace(base.ledger, past=past))


def asked(state: Running, now: float) -> tuple[Running, bool]:
    """The state after the disk was looked at, and whether the worker was asked for a save."""
    after, first = decide(state, ev.Tick(), auto(now))
    if act.Look(state.live.attempt) not in first:
        return state, False
    after, actions = decide(after, ev.Looked(0, None, None, None), auto(now))
    assert isinstance(after, Running)
    return after, act.SignalTrainers("save") in actions


def test_the_worker_is_asked_when_the_interval_is_over_and_not_before() -> None:
    """The timer is at the interval itself; before it nothing is asked, at it the worker is, once."""
    state = worker(sealed_at=100.0, started_at=0.0)
    due = 100.0 + interval(BETWEEN, state.ledger, state.live).seconds
    assert next_due(state, auto(101.0).policy, 101.0) == due
    assert asked(state, due - 0.01)[1] is False
    after, was = asked(state, due)
    assert was
    assert asked(after, due + 1)[1] is False
    assert not any(
        isinstance(a, act.Say) and a.level != "debug" for a in decide(state, ev.Tick(), auto(due))[1]
    )


def test_a_seal_moves_the_interval_and_nothing_between_two_seals_does() -> None:
    """A dearer save and more time without a loss lengthen it; the clock alone does not."""
    state = worker(sealed_at=100.0, started_at=0.0)
    before = paced(auto(0).policy, state.ledger, state.live)
    after = state
    for number in range(1, 5):
        again = ev.Sealed(f"step-00000000{number}.a0001", number, 1, 80.0)
        stepped, _ = decide(after, again, auto(20_000.0))
        assert isinstance(stepped, Running)
        after = stepped
    later = paced(auto(0).policy, after.ledger, after.live)
    assert before.every_seconds is not None
    assert later.every_seconds is not None
    assert later.every_seconds > 2 * before.every_seconds
    assert before == paced(auto(9e9).policy, state.ledger, state.live)


def test_a_save_costs_what_it_keeps_the_training_waiting() -> None:
    """Of a save that goes on beside the training only the standstill counts; the journal says so too."""
    sealed = ev.Sealed("step-000000009.a0001", 9, 1, 80.0, 0.5)
    after, actions = decide(worker(), sealed, auto(20.0))
    assert isinstance(after, Running)
    assert (after.ledger.saves, after.live.costs) == ((80.0,), (0.5,))
    [note] = [action for action in actions if isinstance(action, act.Note)]
    assert (note.data["seconds"], note.data["cost"]) == (80.0, 0.5)
    blocking = replace(sealed, cost=None)
    after, actions = decide(worker(), blocking, auto(20.0))
    assert isinstance(after, Running)
    assert after.live.costs == (80.0,)
    assert not any("cost" in action.data for action in actions if isinstance(action, act.Note))


def test_an_attempts_end_is_learnt_from() -> None:
    """After a crash the ledger has its up-time, its saves and a loss; after a notice no loss; unattached nothing."""
    for why, code, expected in (("", 1, (1.0, 0.0)), ("notice", 75, (0.0, 1.0)), ("restart", 75, (0.0, 0.0))):
        live = worker(started_at=0.0, costs=(7.0,), seals=1).live
        end = Ending(Ledger(attempt=1), live, why, "", code, None, 500.0, None, None, "look", False)
        after, _ = conclude(end.ledger, end, auto(500.0), examined=ev.Examined(5, False, 5, None, ""))
        past = after.ledger.past
        assert (past.lost, past.noticed) == expected
        assert past.up > 480
        assert past.costs == (7.0,)
    bare = replace(end, live=replace(live, attached=False, costs=()), why="", code=1)
    after, _ = conclude(bare.ledger, bare, auto(500.0), examined=ev.Examined(None, False, 0, None, ""))
    assert after.ledger.past == Past()


def test_what_the_job_says_wins() -> None:
    """Without `every: auto` the past changes nothing, and status says nothing of it."""
    state = worker(sealed_at=100.0)
    given = context(0).policy
    assert paced(given, state.ledger, state.live) == given.save
    facts = Facts("a" * 32, "x", "here", "1:2:boot", 1e9, "flock", False, (), None, True, 1e9)
    assert snapshot(state, facts, 200.0)["cadence"] is None


def test_status_tells_the_interval_and_its_reason() -> None:
    """The snapshot has both, and the details of `outlast status` show them in words."""
    state = worker(sealed_at=100.0, started_at=100.0)
    facts = Facts(
        "a" * 32, "x", "here", "1:2:boot", 1e9, "flock", False, (), None, True, 1e9, between=BETWEEN
    )
    view = snapshot(state, facts, 200.0)
    wanted = automatic(KNOWN, BETWEEN)
    assert view["cadence"] == {"seconds": wanted.seconds, "reason": wanted.reason}
    [told] = [text for name, text in row("r", view, Around(1e9)).details if name == "cadence"]
    assert told == "every 5m 3s: a save costs 5 s, and an end that loses work is expected every 2h 36m"
