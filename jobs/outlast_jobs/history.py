"""From the journal to what it means: one pass over the records, which no record can make fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from outlast_jobs import events
from outlast_jobs.history_model import Answer, AttemptRecord, Done, Held, History, Life, Sealed, Verified
from outlast_jobs.journal import Record, iter_journal
from outlast_jobs.pacing import COSTS_KEPT, VANISHED, Past
from outlast_jobs.record_values import floating as _float
from outlast_jobs.record_values import is_stat as _is_stat
from outlast_jobs.record_values import mapping as _mapping
from outlast_jobs.record_values import text as _text
from outlast_jobs.record_values import whole as _int
from outlast_jobs.rundir import RunDirectory

__all__ = ["History", "read_history", "replay"]

_ANSWERS = 64  # the newest are kept; whoever asked reads its answer within seconds


def read_history(run: RunDirectory, *, running: bool = False) -> History:
    """The run's journal, replayed; ``running`` where a supervisor is known to live, as for a view of it."""
    damage: list[str] = []
    history = replay(iter_journal(run, damage), running=running)
    return replace(history, damage=(*damage, *history.damage))


def replay(records: Iterable[Record], *, running: bool = False) -> History:
    """What the records say. An attempt of whose end there is none has vanished, unless the run is running."""
    state = _Replay()
    for record in records:
        state.take(record)
    return state.result(running)


class _Replay:
    """The values as of the record taken last."""

    def __init__(self) -> None:
        self.values = History()
        self.attempts: dict[int, AttemptRecord] = {}
        self.open: int | None = None
        self.opened: Record | None = None  # of the attempt that is open
        self.newest: Record | None = None
        self.past = Past()
        self.costs: deque[float] = deque(maxlen=COSTS_KEPT)
        self.saves: deque[float] = deque(maxlen=COSTS_KEPT)
        self.step: int | None = None  # the newest that the open attempt sealed
        self.sealed: dict[str, Sealed] = {}
        self.verified: dict[str, Verified] = {}
        self.quarantined: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.pins: set[str] = set()

    def take(self, record: Record) -> None:
        if self.values.began is None:
            self.set(began=record.wall)
        if apply := _TABLE.get(record.event):
            apply(self, record)
        self.newest = record

    def set(self, **changes: Any) -> None:
        self.values = replace(self.values, **changes)

    def result(self, running: bool) -> History:
        if not running:
            self.close_open()
        self.note_step()
        return replace(
            self.values,
            attempts=tuple(self.attempts[number] for number in sorted(self.attempts)),
            sealed=self.sealed,
            verified=self.verified,
            quarantined=self.quarantined,
            answers=self.answers,
            pins=frozenset(self.pins),
            past=self.past.saved(*self.costs),
            saves=tuple(self.saves),
        )

    def note_step(self) -> None:
        """Make what was sealed the last step known of the open attempt: once, since seals are many."""
        if self.open is not None and self.step is not None:
            self.attempts[self.open] = replace(self.attempts[self.open], step=self.step)
        self.step = None

    def close_open(self) -> None:
        """An attempt that is followed by something, and not by its end, vanished."""
        self.note_step()
        if self.open is not None:
            lost = self.attempts[self.open]
            self.attempts[self.open] = replace(lost, outcome=VANISHED, reason="previous attempt vanished")
            if lost.attached is not None and self.newest is not None:
                self.past = self.past.ended(self._lived(self.newest), VANISHED, None)
            self.open = self.opened = None

    def _lived(self, until: Record) -> float:
        """How long the open attempt has lived, by a clock that nobody sets; 0 where its start is not known."""
        since = self.opened
        if since is None or (since.life, since.boot) != (until.life, until.boot):
            return 0.0
        return max(0.0, until.mono - since.mono)

    def close(self, record: Record, known: AttemptRecord) -> None:
        """The end of an attempt was recorded."""
        if self.open == known.number:
            if known.attached is not None:
                kind, by = known.outcome or "", _text(record.data, "by")
                self.past = self.past.ended(self._lived(record), kind, by)
            self.open = self.opened = None

    def attempt(self, record: Record) -> AttemptRecord | None:
        """The attempt that a record is about, also where the record of its start was lost."""
        number = _int(record.data, "attempt")
        if number is None or number < 1:
            return None
        return self.attempts.get(number) or AttemptRecord(number, record.life, record.host, record.wall)

    def forget(self, name: str) -> None:
        self.sealed.pop(name, None)
        self.verified.pop(name, None)


def _supervisor_started(state: _Replay, record: Record) -> None:
    data = record.data
    state.close_open()
    identity, version = _text(data, "identity"), _text(data, "version")
    state.set(life=Life(record.life, record.host, identity, version, record.wall))
    _digests(state, record)


def _supervisor_stopped(state: _Replay, record: Record) -> None:
    life = state.values.life
    if life is None or life.number != record.life:
        life = Life(record.life, record.host, None, None, record.wall)
    code, reason = _int(record.data, "code"), _text(record.data, "reason")
    state.set(life=replace(life, stopped=record.wall, code=code, reason=reason))


def _digests(state: _Replay, record: Record) -> None:
    for key in ("job_digest", "command_digest", "code_digest"):
        if (digest := _text(record.data, key)) is not None:
            state.set(**{key: digest})


def _attempt_started(state: _Replay, record: Record) -> None:
    data = record.data
    number = _int(data, "attempt")
    if number is None or number < 1:
        return
    state.close_open()
    host = _text(data, "host") or record.host
    resume, cause = _text(data, "resume"), _text(data, "cause")
    state.attempts[number] = AttemptRecord(number, record.life, host, record.wall, resume, cause)
    state.open, state.opened = number, record
    state.set(done=None)


def _attempt_attached(state: _Replay, record: Record) -> None:
    state.note_step()
    known = state.attempt(record)
    if known is not None and known.attached is None:  # the first of several ranks
        restored = _text(record.data, "restored")
        state.attempts[known.number] = replace(known, attached=record.wall, restored=restored)


def _attempt_ended(state: _Replay, record: Record) -> None:
    data = record.data
    state.note_step()
    if (known := state.attempt(record)) is None:
        return
    number = known.number
    step = _int(data, "step")
    signal = data.get("signal")
    state.attempts[number] = replace(
        known,
        ended=record.wall,
        outcome=_text(data, "outcome") or "ended",
        reason=_text(data, "reason"),
        code=_int(data, "code"),
        signal=signal if isinstance(signal, int | str) else None,
        step=known.step if step is None else step,
        signature=data.get("signature"),
    )
    state.close(record, state.attempts[number])
    if (counters := _mapping(data, "counters")) is not None:
        state.set(counters=counters)
    state.set(next_resume=_text(data, "next"))


def _sealed(state: _Replay, record: Record) -> None:
    data = record.data
    if (name := _text(data, "generation")) is None:
        return
    step, seconds = _int(data, "step"), _float(data, "seconds")
    state.sealed[name] = Sealed(step, _int(data, "bytes"), seconds, record.wall)
    if seconds is not None:
        state.saves.append(seconds)
    cost = _float(data, "cost")
    if cost is not None or seconds is not None:
        state.costs.append(cost if cost is not None else seconds or 0.0)
    if state.open is not None and step is not None:
        state.step = step


def _verified(state: _Replay, record: Record) -> None:
    data = record.data
    name, stats = _text(data, "generation"), _mapping(data, "stats")
    if name is None or stats is None or not all(_is_stat(value) for value in stats.values()):
        return
    state.verified[name] = Verified(stats, data.get("healthy") is not False, record.wall)


def _quarantined(state: _Replay, record: Record) -> None:
    if (name := _text(record.data, "generation")) is not None:
        state.forget(name)
        state.quarantined[name] = _reason(record)


def _dropped(state: _Replay, record: Record) -> None:
    if (name := _text(record.data, "generation")) is not None:
        state.forget(name)


def _pinned(state: _Replay, record: Record) -> None:
    if (name := _text(record.data, "generation")) is not None:
        state.pins.add(name)


def _unpinned(state: _Replay, record: Record) -> None:
    state.pins.discard(_text(record.data, "generation") or "")


def _held(state: _Replay, record: Record) -> None:
    state.set(held=_hold(state, record, _text(record.data, "by") or "unknown"))


def _gave_up(state: _Replay, record: Record) -> None:
    # Given up means held also where a kill came before the record that says so.
    state.set(held=_hold(state, record, "outlast"))
    if (counters := _mapping(record.data, "counters")) is not None:
        state.set(counters=counters)


def _hold(state: _Replay, record: Record, by: str) -> Held:
    data = record.data
    job = _text(data, "job_digest") or state.values.job_digest
    code = _text(data, "code_digest") or state.values.code_digest
    return Held(by, _reason(record), record.wall, job, code)


def _reason(record: Record) -> str:
    return _text(record.data, "reason") or "no reason recorded"


def _released(state: _Replay, record: Record) -> None:
    state.values = state.values.released(_mapping(record.data, "counters"))


def _done(state: _Replay, record: Record) -> None:
    attempt, digest = _int(record.data, "attempt"), _text(record.data, "command_digest")
    state.set(done=Done(attempt, digest or state.values.command_digest, record.wall))


def _clock_jumped(state: _Replay, record: Record) -> None:
    """What this life wrote before went by a clock that was wrong, as after a boot without one."""
    by = _float(record.data, "seconds") or 0.0
    for number, known in state.attempts.items():
        if known.life == record.life:
            times = {name: getattr(known, name) for name in ("started", "attached", "ended")}
            moved = {name: at + by for name, at in times.items() if at is not None}
            pauses = [(since + by, until + by) for since, until in known.pauses]
            state.attempts[number] = replace(known, **moved, pauses=pauses)


def _paused(state: _Replay, record: Record) -> None:
    if (known := state.attempts.get(state.open or 0)) is not None:
        known.pauses.append((record.wall - (_float(record.data, "seconds") or 0.0), record.wall))


def _audit(state: _Replay, record: Record) -> None:
    state.set(last_audit=record.data)


def _answered(state: _Replay, record: Record) -> None:
    if (asked := _text(record.data, "id")) is not None:
        state.answers[asked] = Answer(record.data.get("ok") is True, _text(record.data, "text") or "")
        while len(state.answers) > _ANSWERS:
            del state.answers[next(iter(state.answers))]


_TABLE: Mapping[str, Callable[[_Replay, Record], None]] = {
    events.SUPERVISOR_STARTED: _supervisor_started,
    events.SUPERVISOR_STOPPED: _supervisor_stopped,
    events.JOB_CHANGED: _digests,
    events.CLOCK_JUMPED: _clock_jumped,
    events.PAUSED: _paused,
    events.ATTEMPT_STARTED: _attempt_started,
    events.ATTEMPT_ATTACHED: _attempt_attached,
    events.ATTEMPT_ENDED: _attempt_ended,
    events.SEALED: _sealed,
    events.VERIFIED: _verified,
    events.QUARANTINED: _quarantined,
    events.DROPPED: _dropped,
    events.PINNED: _pinned,
    events.UNPINNED: _unpinned,
    events.HELD: _held,
    events.GAVE_UP: _gave_up,
    events.RELEASED: _released,
    events.DONE: _done,
    events.AUDIT: _audit,
    events.ANSWERED: _answered,
}
