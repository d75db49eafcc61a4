"""Phases of a worker: what it is doing now, told to the supervisor, nested where the script nests them."""

from __future__ import annotations

from collections.abc import Callable

from outlast_jobs.contract import Phase

_MARK = "_outlast_phase"


def phase_named(name: str) -> Phase:
    """The phase of this name, or an error that lists them."""
    try:
        return Phase(name)
    except ValueError:
        known = ", ".join(phase.value for phase in Phase)
        raise ValueError(
            f'cannot enter the phase "{name}": there is no such phase; choose one of {known}'
        ) from None


class Phases:
    """A stack of phases. Each change is announced, since the supervisor learns how long each phase takes."""

    def __init__(self, announce: Callable[[Phase], None]) -> None:
        self._announce = announce
        self._stack = [Phase.RESTORE]

    @property
    def current(self) -> Phase:
        return self._stack[-1]

    def inside(self, phase: Phase) -> bool:
        """Whether this phase was entered and not left yet, however deep."""
        return phase in self._stack[1:]

    def become(self, phase: Phase) -> None:
        """Replace the outermost phase: restore ends, training begins."""
        self._stack[0] = phase
        self._announce(phase)

    def enter(self, phase: Phase) -> None:
        self._stack.append(phase)
        self._announce(phase)

    def leave(self) -> None:
        """Leave the innermost phase, back into the one around it."""
        self._pop()
        self._announce(self.current)

    def leave_by(self, error: BaseException) -> None:
        """Leave the innermost phase by an exception, which is marked with it, for the report of a failure."""
        if not hasattr(error, _MARK):
            setattr(error, _MARK, self.current)
        self._pop()
        if not isinstance(error, SystemExit):  # after its last word a worker is in no phase
            self._announce(self.current)

    def of(self, error: BaseException) -> Phase:
        """The phase in which this exception was raised."""
        found = getattr(error, _MARK, self.current)
        return found if isinstance(found, Phase) else self.current

    def _pop(self) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
