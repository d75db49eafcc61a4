"""What the end of a supervisor means for its job: done, held, refused, or tried again after a while."""

from __future__ import annotations

from outlast_jobs.contract import ExitCode
from outlast_jobs.units import format_duration

from .model import Past, State

LIVED = 60.0
"""Seconds after which a supervisor's end begins a new count: it was no failed start."""

_FINAL: dict[int | None, State] = {
    ExitCode.DONE: State.DONE,
    ExitCode.HELD: State.HELD,
    ExitCode.USAGE: State.REFUSED,
    ExitCode.UNUSABLE: State.REFUSED,
}
_PASSING: dict[int | None, State] = {ExitCode.BUSY: State.ELSEWHERE}
_WAITS: dict[int | None, tuple[float, float]] = {
    ExitCode.BUSY: (2.0, 60.0),  # it may be a person's, or another host's
    ExitCode.CANNOT_WRITE: (60.0, 600.0),  # a full disk is not made free by trying
}
_WAIT = (1.0, 60.0)  # seconds, from the first wait to the longest
_WORDS: dict[int | None, str] = {
    ExitCode.DONE: "done",
    ExitCode.HELD: "held: given up, or stopped by hand; outlast release lifts it, and then touch its file",
    ExitCode.USAGE: "refused (64): see its log; it is tried again when its file changes",
    ExitCode.UNUSABLE: "no usable checkpoint (65): see its log; it is tried again when its file changes",
    ExitCode.BUSY: "another supervisor has the run (69)",
    ExitCode.CANNOT_WRITE: "cannot write its run directory (73)",
    ExitCode.SAVED: "not done (75)",
    None: "its supervisor was killed",
}


def final_state(code: int | None) -> State | None:
    """The state in which a job stays until its file changes; None where it is tried again."""
    return _FINAL.get(code)


def passing_state(code: int | None) -> State:
    """The state of a job that is tried again later."""
    return _PASSING.get(code, State.WAITING)


def outcome(
    code: int | None, version: str, before: Past | None, *, stopped: bool, lived: float, now: float
) -> Past | None:
    """What is remembered of a supervisor that ended; None for nothing: it is as if it had never run.

    ``code`` is negative for a signal and None where nobody saw it. ``stopped``: we had told it to. ``lived`` and
    ``now`` are seconds. The wait doubles with every end in a row, and begins anew after a life of LIVED seconds.
    """
    if final_state(code) is not None:
        return Past(version, code, 0, now, _WORDS[code])
    if stopped:
        return None
    first, longest = _WAITS.get(code, _WAIT)
    again = before is not None and before.version == version and lived < LIVED
    fails = before.fails + 1 if before is not None and again else 1
    wait = min(longest, first * 2.0 ** min(fails - 1, 20))
    return Past(version, code, fails, now + wait, f"{_words(code)}; again after {format_duration(wait)}")


def _words(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its supervisor was killed by signal {-code}"
    return _WORDS.get(code, f"its supervisor ended with {code}")
