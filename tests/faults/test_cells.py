"""Every cell of the state table, with many variants of each state and event, against what must hold in all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.faults.cells import CONTEXTS, NOW, happenings, states
from tests.faults.scale import WHOLE, chance, scaled, told

from outlast_supervisor import actions as act
from outlast_supervisor import events as ev
from outlast_supervisor.policy import Context
from outlast_supervisor.states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Running,
    Starting,
    State,
    Stopping,
    shifted,
)
from outlast_supervisor.table import EVENTS, STATES, TABLE, decide
from outlast_supervisor.timers import next_due

ALIVE = (Starting, Running, Stopping)


def _cells(name: str, sample: int, all_of_them: bool = True) -> Iterator[tuple[State, ev.Event, Context]]:
    """All pairs of a state and an event in all variants, or so many drawn at random, each with a context.

    Every pair of types is among those drawn.
    """
    random = chance(name)
    every, happens = [*states()], [*happenings()]
    number = len(every) * len(happens)
    if not (WHOLE and all_of_them):
        sample = scaled(sample, 100 * sample)
        number = sample + len(STATES) * len(EVENTS)
        by_kind = {kind: [s for s in every if type(s) is kind] for kind in STATES}
        for kind, event in itertools.product(STATES, EVENTS):
            other = [e for e in happens if type(e) is event]
            yield random.choice(by_kind[kind]), random.choice(other), random.choice(CONTEXTS)
        for _ in range(sample):
            kind = random.choice(STATES)  # those with few variants as often as those with many
            yield random.choice(by_kind[kind]), random.choice(happens), random.choice(CONTEXTS)
    else:
        for state, happened in itertools.product(every, happens):
            yield state, happened, random.choice(CONTEXTS)
    told(f"cells ({name})", number)


def pending(state: State) -> list[str]:
    """The requests that a state has yet to answer."""
    of_live = getattr(state, "live", None)
    asked = [*of_live.save_requests] if of_live is not None else []
    return asked + ([state.ledger.stop_request] if state.ledger.stop_request else [])


def in_flight(before: State, after: State, actions: tuple[act.Action, ...]) -> bool:
    """Whether an answer or a death that will be told brings the next event, where no timer does."""
    kinds = {type(action) for action in actions}
    match after:
        case Choosing():
            return act.Choose in kinds or (isinstance(before, Choosing) and before.retry_at is None)
        case Launching():
            return act.Spawn in kinds or isinstance(before, Launching)
        case Clearing():
            return act.EndLeftovers in kinds or (isinstance(before, Clearing) and before.look_at is None)
        case Ending() if after.examining:
            return act.Examine in kinds or (isinstance(before, Ending) and before.examining)
        case Ending():
            return act.EndLeftovers in kinds or (isinstance(before, Ending) and before.look_at is None)
        case Starting() | Running():
            return True  # its process lives, and its end will be told
    return isinstance(after, Finished)


def test_the_variants_reach_every_cell() -> None:
    """Each state and each event has a variant, so no cell of the table is left out."""
    assert {type(state) for state in states()} == set(STATES)
    assert {type(event) for event in happenings()} == set(EVENTS)
    assert set(TABLE) == {(state, event) for state in STATES for event in EVENTS}


def test_no_cell_breaks_what_must_hold_everywhere() -> None:
    """In each cell: one worker at most, a way on, one exit, nothing forgotten, each request answered once."""
    for state, event, ctx in _cells("invariants", 25_000):
        after, actions = decide(state, event, ctx)
        case = (state, event, ctx, after, actions)
        assert isinstance(after, STATES), case
        assert all(isinstance(action, act.Action) for action in actions), case
        kinds = [type(action) for action in actions]
        # never two attempts alive
        assert (act.Spawn in kinds) <= (isinstance(state, Choosing) and isinstance(after, Launching)), case
        assert kinds.count(act.Spawn) <= 1, case
        if isinstance(state, ALIVE):  # a worker that lives is left only through its death
            assert isinstance(after, (*ALIVE, Ending)), case
            assert (isinstance(after, Ending)) == isinstance(event, ev.WorkerExited), case
        if isinstance(state, Ending) and not isinstance(after, Ending):
            assert state.examining, case
        # a way on
        assert next_due(after, ctx.policy, ctx.now) is not None or in_flight(state, after, actions), case
        if isinstance(after, Stopping):
            assert next_due(after, ctx.policy, ctx.now) is not None, case
        # the exit is ordered on the way into Finished, and only once, but for a second interrupt
        entered = isinstance(after, Finished) and not isinstance(state, Finished)
        again = isinstance(state, Finished) and isinstance(event, ev.StopNow)
        assert kinds.count(act.Exit) == (entered or again), case
        if entered:
            assert kinds[-1] is act.Exit, case
            assert after.code in (0, 65, 69, 70, 73, 75), case
        # what was decided once is not forgotten
        for name in ("leaving", "holding", "gone"):
            assert not getattr(state.ledger, name) or getattr(after.ledger, name), case
        assert after.ledger.attempt >= state.ledger.attempt, case


def test_every_cell_answers_or_remembers_every_request() -> None:
    """What is asked is answered once or kept to be answered; nothing is answered twice or lost, ever."""
    for state, event, ctx in _cells("answers", 15_000):
        if isinstance(state, Finished) and pending(state):
            continue  # cannot be entered: the check below says so
        after, actions = decide(state, event, ctx)
        asked = getattr(event, "request", "")
        answered = [action.request for action in actions if isinstance(action, act.Answer) and action.request]
        left = pending(after) if not isinstance(after, Finished) else []
        assert sorted(answered + left) == sorted(pending(state) + ([asked] if asked else [])), (
            state,
            event,
            ctx,
            after,
            actions,
        )


def test_every_cell_is_pure_and_moves_with_time_that_stood_still() -> None:
    """A decision is the same again, and the same but later where the clock stood still before it."""
    for state, event, ctx in _cells("pure", 5_000, all_of_them=False):
        after = decide(state, event, ctx)
        assert decide(state, event, ctx) == after
        if isinstance(event, ev.DeadlineKnown) or state.ledger.deadline is not None:
            continue  # the machine goes when it goes
        paused, nothing = decide(state, ev.Paused(7.0), ctx)
        assert nothing == ()
        later, actions = decide(paused, event, Context(ctx.policy, ctx.now + 7.0, ctx.chance))
        moved = tuple(shifted(action, 7.0) for action in after[1])
        assert (later, actions) == (shifted(after[0], 7.0), moved), (state, event)


def test_a_timer_that_is_heeded_is_over() -> None:
    """After the ticks of an instant the next timer lies ahead: the loop never spins."""
    random = chance("ticks")
    tried = 0
    for state in states():
        for ctx in CONTEXTS if scaled(False, True) else [random.choice(CONTEXTS)]:
            now, here = NOW, 0
            for _ in range(8):
                due = next_due(state, ctx.policy, now)
                if due is None:
                    break
                now, here = max(now, due), here + 1 if due <= now else 1
                state, _ = decide(state, ev.Tick(), Context(ctx.policy, now, ctx.chance))
                tried += 1
                assert here <= 4, (state, now)  # several timers may end at one instant, and each ends once
    told("ticks", tried)
