"""What a worker died of: the failure, its signature, and how to find one in the tail of a log."""

from __future__ import annotations

import builtins
import re
from typing import Any

from msgspec import Struct

MESSAGE_LIMIT = 500
"""Characters of an exception's message that are kept."""
NO_THREAD = "can't start new thread"
"""What Python says in a RuntimeError at the limit of processes, which may pass as a lack of memory may."""
_NO_MEMORY = "allocate memory"
_OUTSIDE = (_NO_MEMORY, "allocate shared memory", "is killed by signal", "exited unexpectedly")
"""Of /dev/shm, and of a loader process: a RuntimeError of torch's as well."""
_GAP = " […] "


class Signature(Struct, frozen=True):
    """What makes two failures the same: exception, last traceback line, the last step that was whole."""

    exception: str
    where: str
    step: int | None = None

    def __str__(self) -> str:
        after = f" after step {self.step}" if self.step is not None else ""
        return f"{self.exception}{after} ({self.where})" if self.where else f"{self.exception}{after}"

    def same_place(self, other: Signature) -> bool:
        """Same exception at the same line, whatever the step."""
        return (self.exception, self.where) == (other.exception, other.where)


class Failure(Struct, frozen=True):
    """One exception that ended a worker; `passing` kinds (storage, network, memory) may not recur."""

    exception: str
    message: str = ""
    where: str = ""
    step: int | None = None
    phase: str | None = None
    passing: bool = False

    @property
    def signature(self) -> Signature:
        return Signature(self.exception, self.where, self.step)

    @property
    def of_memory(self) -> bool:
        """Whether this machine's memory was short, or a limit on it (``ulimit -v``) was reached."""
        return self.exception == "MemoryError" or _NO_MEMORY in self.message

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Failure:
        """From the worker's own report; whatever is missing or of a wrong type is left out."""
        step, phase = data.get("step"), data.get("phase")
        return cls(
            exception=str(data.get("exception") or "Exception"),
            message=str(data.get("message") or "")[:MESSAGE_LIMIT],
            where=str(data.get("where") or ""),
            step=step if isinstance(step, int) and not isinstance(step, bool) else None,
            phase=phase if isinstance(phase, str) else None,
            passing=data.get("passing") is True,
        )


_FRAME = re.compile(r'\s+File "([^"]*)", line (\d+)(?:, in (.*))?$')
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$")
_PREFIX = re.compile(r"\[(?:default|rank)\d+\]:\s?")  # torchrun and torch put the rank before every line


def says_passing(message: str) -> bool:
    """Whether a message is of what the system refused or ended, whatever the kind of the exception."""
    return message == NO_THREAD or any(words in message for words in _OUTSIDE)


def shortened(message: str) -> str:
    """Its beginning and its end: what a loader process died of, torch says last."""
    if len(message) <= MESSAGE_LIMIT:
        return message
    head = (MESSAGE_LIMIT - len(_GAP)) // 2
    return message[:head] + _GAP + message[len(_GAP) + head - MESSAGE_LIMIT :]


def _is_passing(exception: str, message: str) -> bool:
    """By name only, since a log has no class: the builtin families, and torch's own out-of-memory error."""
    name = exception.rsplit(".", 1)[-1]
    found = getattr(builtins, name, None)
    if says_passing(message):
        return True
    if isinstance(found, type):
        return issubclass(found, (OSError, MemoryError))
    return name == "OutOfMemoryError"


def signature_from_log(tail: str) -> Failure | None:
    """The last Python exception in the tail of a log, for workers that could not report one themselves."""
    found: Failure | None = None
    where: str | None = None
    for raw in tail.splitlines():
        line = _PREFIX.sub("", raw, count=1)
        if frame := _FRAME.match(line):
            path, number, function = frame.groups()
            where = f"{path.rsplit('/', 1)[-1]}:{number}" + (f" in {function}" if function else "")
        elif where is not None and not line.startswith((" ", "\t")):
            if raised := _RAISED.match(line):
                name, message = raised.group(1), raised.group(2) or ""
                found = Failure(name, message[:MESSAGE_LIMIT], where, passing=_is_passing(name, message))
            where = None
    return found
