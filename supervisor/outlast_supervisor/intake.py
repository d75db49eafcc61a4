"""Turn notifications into events: who may speak is decided by the kernel's word, then each field is read."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from outlast_jobs import safejson
from outlast_jobs.contract import BUFFER_NAME, PROTOCOL, Env, Field
from outlast_jobs.errors import IntegrityError
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Failure

from . import events as ev
from . import linux
from .keptbuffer import KeptBuffer
from .notify import Message
from .processes import carries, unmarked_below_us

_NO_REPORTS = {Field.READY, Field.EXIT}  # their step was restored or trained before, not just now
_MOST_PINNED = 64
_MAX_SENDERS = 4096  # a worker that forks without end must not fill our memory


class Trainers(Struct):
    """The attached trainers of the running attempt, each pinned by a pidfd that tells of its end.

    The descriptor is -1 where the kernel has no pidfds, and for those beyond the first 64, since descriptors are few:
    then deaths of children are when to look.
    """

    selector: selectors.BaseSelector
    by_pid: dict[int, tuple[ProcessIdentity, int]] = field(default_factory=dict)

    def attach(self, identity: ProcessIdentity) -> bool:
        """Pin a trainer; False where it is known already or gone."""
        if identity.pid in self.by_pid:
            return False
        fd = -1
        if len(self.by_pid) < _MOST_PINNED:
            with contextlib.suppress(OSError):
                fd = linux.pidfd_open(identity.pid)
        if not identity.alive():
            _close(fd)
            return False
        self.by_pid[identity.pid] = (identity, fd)
        if fd >= 0:
            self.selector.register(fd, selectors.EVENT_READ, ("trainer", identity.pid))
        return True

    def unpinned_gone(self) -> list[int]:
        """Those without a pidfd that have ended."""
        return [pid for pid, (identity, fd) in self.by_pid.items() if fd < 0 and not identity.alive()]

    def gone(self, pid: int) -> ProcessIdentity | None:
        """Forget a trainer whose pidfd became readable."""
        known = self.by_pid.pop(pid, None)
        if known is None:
            return None
        if known[1] >= 0:
            self.selector.unregister(known[1])
            _close(known[1])
        return known[0]

    def clear(self) -> None:
        """Forget all of them: the attempt is over."""
        for pid in list(self.by_pid):
            self.gone(pid)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


class Intake:
    """Reads the messages of one attempt; everything else that speaks to the socket is passed over."""

    def __init__(self, trainers: Trainers, complain: Callable[[str], None]) -> None:
        self.buffer = KeptBuffer()
        self._trainers = trainers
        self._complain = complain
        self._markers: tuple[bytes, bytes] | None = None
        self._known: dict[int, ProcessIdentity] = {}
        self._told: set[ProcessIdentity] = set()  # trainers whose attach was told
        self._strangers = 0

    def expect(self, run_id: str, attempt: int) -> None:
        """From now on only processes of this attempt are heard."""
        self._markers = (f"{Env.RUN_ID}={run_id}".encode(), f"{Env.ATTEMPT}={attempt}".encode())
        self._known.clear()
        self._told.clear()

    def know(self, worker: ProcessIdentity) -> None:
        """The first process of the attempt: its words count also when it is dead before they are read."""
        self._known[worker.pid] = worker

    def events(self, message: Message) -> list[ev.Event]:
        """What a message says, in an order that keeps facts before last words."""
        sender = self._sender(message.pid)
        if sender is None:
            _close(message.fd)
            return []
        fields = message.fields
        self._keep(message)
        found: list[ev.Event] = []
        step = _count(fields.get(Field.STEP))
        # without our protocol it is another program's, or another supervisor's, which takes us for its service manager
        ready = Field.READY in fields and Field.PROTOCOL in fields
        if ready or (step is not None and message.pid not in self._trainers.by_pid):
            # a step from one whose READY was lost attaches it: a lost datagram is no dead worker
            found += self._attach(sender, fields, step)
        found += _facts(fields, step)
        return found

    def _keep(self, message: Message) -> None:
        """Keep a descriptor as systemd's service manager does, but only the one that we know what to do with."""
        ours = message.fields.get(Field.FDNAME) == BUFFER_NAME
        if ours and Field.FDSTORE in message.fields and message.fd >= 0:
            if not self.buffer.take(message.fd):
                self._complain("passed over a descriptor of the worker's that is no buffer")
            return
        _close(message.fd)
        if ours and Field.FDSTOREREMOVE in message.fields:
            self.buffer.drop()

    def _sender(self, pid: int) -> ProcessIdentity | None:
        """The identity of a process of this attempt; None for any other."""
        known, now = self._known.get(pid), ProcessIdentity.of(pid)
        # dead by now or not: a datagram that it sent before is still its own, unless another has its pid now
        if known is not None and (now is None or now == known):
            return known
        if not self._is_of_attempt(pid):
            self._strangers += 1
            if self._strangers in (1, 100, 10_000):
                self._complain(
                    f"passed over {self._strangers} notifications of processes that are not this attempt's"
                )
            return None
        if now is not None and len(self._known) < _MAX_SENDERS:
            self._known[pid] = now
        return now

    def _is_of_attempt(self, pid: int) -> bool:
        if self._markers is None:
            return False
        try:
            return all(carries(pid, marker) for marker in self._markers) or unmarked_below_us(pid)
        except OSError:  # nobody can be looked at now: a lost datagram is no dead worker
            return False

    def _attach(self, sender: ProcessIdentity, fields: Mapping[str, str], step: int | None) -> list[ev.Event]:
        protocol = fields.get(Field.PROTOCOL, PROTOCOL)
        if protocol != PROTOCOL:
            return [
                ev.Refused(
                    f"the worker speaks protocol {protocol}, this outlast {PROTOCOL}: install one version"
                )
            ]
        ready, known = Field.READY in fields, sender in self._told
        anew = ready and sender.pid in self._trainers.by_pid  # another try of the same process
        if (known and not anew) or len(self._told) >= _MAX_SENDERS:
            return []
        self._told.add(sender)
        # one that was quicker than we were has ended by now, and was a trainer all the same
        gone = [] if known or self._trainers.attach(sender) else [ev.TrainerGone(sender)]
        at = (step or 0) if ready else None
        restored = fields.get(Field.RESTORED) or None
        return [ev.Attached(sender, _count(fields.get(Field.RANK)) or 0, at, restored), *gone]


def _facts(fields: Mapping[str, str], step: int | None) -> list[ev.Event]:
    found: list[ev.Event] = []
    if (name := fields.get(Field.SEALED)) is not None and step is not None:
        found.append(
            ev.Sealed(
                name,
                step,
                _count(fields.get(Field.BYTES)) or 0,
                _seconds(fields.get(Field.SECONDS)),
                _seconds(fields[Field.COST]) if Field.COST in fields else None,
            )
        )
    elif not fields.keys() & _NO_REPORTS and (step is not None or Field.PHASE in fields):
        total = _count(fields.get(Field.TOTAL))
        found.append(ev.Reported(step, total, fields.get(Field.LOSS), fields.get(Field.PHASE)))
    if (written := _count(fields.get(Field.SAVING))) is not None:
        found.append(ev.Saving(written))
    if (reason := fields.get(Field.SAVE_FAILED)) is not None:
        found.append(ev.SaveFailed(reason))
    if (sick := _count(fields.get(Field.SICK))) is not None:
        found.append(ev.Sick(sick))
    if (bad := _object(fields.get(Field.BAD))) is not None:
        where = f'"{bad["file"]}": ' if bad.get("file") else ""
        found.append(
            ev.FoundBad(str(bad.get("generation", "")), f"{where}{bad.get('reason', 'no reason given')}")
        )
    if (refused := fields.get(Field.REFUSED)) is not None:
        found.append(ev.Refused(refused))
    if (drift := fields.get(Field.DRIFT)) is not None:
        found.append(ev.Drifted(_sentences(drift)))
    if (failure := _object(fields.get(Field.FAILURE))) is not None:
        found.append(ev.Raised(Failure.from_dict(failure)))
    if (word := fields.get(Field.EXIT)) is not None:
        found.append(ev.Said(word))
    return found


def _count(text: str | None) -> int | None:
    """A whole number of at most 18 digits, or None: what cannot be read is passed over."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None


def _seconds(text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def _object(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        return safejson.parse_object(text.encode(), what="a notification", limit=8192)
    except IntegrityError:
        return {"reason": text, "exception": "an exception that could not be read", "message": text}


def _sentences(text: str) -> tuple[str, ...]:
    wrapped = _object('{"list":' + text + "}") or {}
    items = wrapped.get("list")
    return tuple(str(item) for item in items) if isinstance(items, list) else (text,)
