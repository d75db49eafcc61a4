"""The one table: every state and every event has a cell; ``decide`` looks it up, and nothing else decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from msgspec.structs import replace

from . import events as ev
from . import rules_asked as asked
from . import rules_begin as begin
from . import rules_end as end
from . import rules_live as live
from . import rules_silence as silence
from .actions import Answer, Exit
from .policy import Context
from .states import (
    Choosing,
    Clearing,
    Ending,
    Finished,
    Launching,
    Running,
    Starting,
    State,
    Step,
    Stopping,
    Waiting,
    shifted,
)

Handler = Callable[[Any, Any, Context], Step]

STATES: tuple[type, ...] = get_args(State)
EVENTS: tuple[type, ...] = get_args(ev.Event)


def _paused(state: State, event: ev.Paused, ctx: Context) -> Step:
    return shifted(state, event.seconds), ()


def _deadline(state: State, event: ev.DeadlineKnown, ctx: Context) -> Step:
    return replace(state, ledger=replace(state.ledger, deadline=event.at, deadline_source=event.source)), ()


def _nothing(state: State, event: ev.Event, ctx: Context) -> Step:
    """The cell of an event that changes nothing here: it is late, or it cannot happen."""
    return state, ()


def _too_late(state: State, event: ev.SaveAsked | ev.StopAsked | ev.RestartAsked, ctx: Context) -> Step:
    if not event.request:
        return state, ()
    return state, (Answer(event.request, False, "the supervisor is ending"),)


def _at_once(state: Finished, event: ev.StopNow, ctx: Context) -> Step:
    """A second interrupt does not wait for a hook, nor for the last verification."""
    return state, (Exit(state.code, state.reason, at_once=True),)


_EVERYWHERE: dict[type, Handler] = {
    ev.Paused: _paused,
    ev.DeadlineKnown: _deadline,
    ev.Verified: live.verified,
    ev.Rejected: live.rejected_late,
    ev.Audited: live.audited,
}

_IDLE: dict[type, Handler] = {
    ev.RunGone: begin.idle_gone,
    ev.Notice: begin.idle_notice,
    ev.StopNow: begin.idle_notice,
    ev.Warned: begin.idle_warned,
    ev.SaveAsked: begin.idle_save,
    ev.StopAsked: begin.idle_stop,
    ev.RestartAsked: begin.idle_restart,
}

_TOLD: dict[type, Handler] = {  # what a trainer may still say while it ends, or after
    ev.Sealed: live.sealed,
    ev.Wrote: live.wrote,
    ev.Said: live.said,
    ev.Raised: live.raised,
    ev.FoundBad: live.found_bad,
    ev.Refused: live.refused,
    ev.TrainerGone: live.trainer_gone,
}

_ALIVE: dict[type, Handler] = {
    **_TOLD,
    ev.RunGone: asked.run_gone,
    ev.Tick: asked.tick,
    ev.Attached: live.attached,
    ev.Reported: live.reported,
    ev.Saving: live.saving,
    ev.SaveFailed: live.save_failed,
    ev.SaveUnheard: asked.save_unheard,
    ev.Looked: silence.looked,
    ev.Rejected: live.rejected,
    ev.Sick: live.sick,
    ev.Drifted: live.drifted,
    ev.WorkerExited: live.exited,
    ev.Notice: asked.notice,
    ev.Warned: asked.warned,
    ev.StopNow: asked.stop_now,
    ev.SaveAsked: asked.save_asked,
    ev.StopAsked: asked.stop_asked,
    ev.RestartAsked: asked.restart_asked,
}

_ROWS: dict[type, dict[type, Handler]] = {
    Clearing: {
        **_IDLE,
        ev.Tick: begin.clearing_tick,
        ev.StopAsked: begin.remember_stop,
        ev.LeftoversGone: begin.clearing_gone,
        ev.LeftoversRemain: begin.clearing_remain,
    },
    Choosing: {
        **_IDLE,
        ev.Tick: begin.choosing_tick,
        ev.Chosen: begin.choosing_chosen,
        ev.Unusable: begin.choosing_unusable,
        ev.ChooseFailed: begin.choosing_failed,
    },
    Launching: {
        **_IDLE,
        ev.Spawned: begin.launching_spawned,
        ev.SpawnFailed: begin.launching_failed,
        ev.RunGone: begin.remember_gone,
        ev.Notice: begin.launching_notice,
        ev.StopNow: begin.launching_notice,
        ev.StopAsked: begin.remember_stop,
    },
    Starting: _ALIVE,
    Running: _ALIVE,
    Stopping: {
        **_TOLD,
        ev.RunGone: asked.run_gone,
        ev.Tick: end.stopping_tick,
        ev.Attached: end.stopping_attached,
        ev.Reported: end.stopping_reported,
        ev.Saving: live.saving,
        ev.SaveFailed: live.save_failed,
        ev.Sick: end.stopping_sick,
        ev.WorkerExited: live.exited,
        ev.Notice: end.stopping_notice,
        ev.StopNow: asked.stop_now,
        ev.SaveAsked: end.stopping_save,
        ev.StopAsked: end.stopping_stop,
        ev.RestartAsked: end.stopping_restart,
    },
    Ending: {
        **_TOLD,
        ev.RunGone: begin.remember_gone,
        ev.Tick: end.ending_tick,
        ev.Attached: end.ending_attached,
        ev.LeftoversGone: end.ending_gone,
        ev.LeftoversRemain: end.ending_remain,
        ev.Examined: end.ending_examined,
        ev.Notice: end.ending_notice,
        ev.StopNow: end.ending_stop_now,
        ev.SaveAsked: end.stopping_save,
        ev.StopAsked: end.stopping_stop,
        ev.RestartAsked: end.ending_restart,
    },
    Waiting: {
        **_IDLE,
        ev.Tick: begin.waiting_tick,
        ev.RestartAsked: begin.waiting_restart,
    },
    Finished: {
        ev.StopNow: _at_once,
        ev.SaveAsked: _too_late,
        ev.StopAsked: _too_late,
        ev.RestartAsked: _too_late,
    },
}

TABLE: dict[tuple[type, type], Handler] = {
    (state, event): _ROWS[state].get(event) or _EVERYWHERE.get(event, _nothing)
    for state in STATES
    for event in EVENTS
}


def decide(state: State, event: ev.Event, ctx: Context) -> Step:
    """The next state and what is to be done, in order. Pure."""
    return TABLE[type(state), type(event)](state, event, ctx)
