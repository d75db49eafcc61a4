"""The end of a scratch run: whether it came to where the uninterrupted one did."""

from __future__ import annotations

from dataclasses import dataclass

from outlast_jobs.look import look
from outlast_jobs.metrics import history
from outlast_jobs.verify import scan

from .attacking import Measured
from .census import Census
from .model import Check, Row, Word
from .observe import Lines, differs, generations, idle_streams
from .supervised import ScratchRun


@dataclass(frozen=True)
class Final:
    """What a run left: each step once, and the digest of its last state (empty where it has none)."""

    lines: Lines
    state: str


def final_state(run: ScratchRun) -> Final:
    """Read it."""
    lines = {line["step"]: line for line in history(run.run)}
    for path in scan(run.run.checkpoints):
        index = look(path, None, full=True).index
        if index is not None and index.final:
            return Final(lines, index.state_sha256 or "")
    return Final(lines, "")


def end_of(run: ScratchRun, census: Census, measured: Measured, repeatable: bool, name: str) -> Row:
    """The verdict on a run that was attacked and then left to itself until it was done."""
    final = final_state(run)
    census.alive()
    return judge_end(
        name,
        run.code,
        final,
        measured,
        repeatable,
        bad=[f"{name}: {why}" for name, why in generations(run).items() if why],
        left=census.described(census.alive()),
    )


def same_state(final: Final, measured: Measured) -> bool:
    """Whether the last states are equal: as wholes, or in every part where a stream was never seeded.

    Such a stream is in the state, and stands elsewhere in each run.
    """
    if final.state == measured.state:
        return True
    mine, others = _last_parts(final.lines), _last_parts(measured.lines)
    return bool(idle_streams(measured.lines)) and bool(mine) and mine == others


def _last_parts(lines: Lines) -> object:
    record = lines[max(lines)].get("proof") if lines else None
    return record.get("parts") if isinstance(record, dict) else None


def judge_end(
    name: str,
    code: int | None,
    final: Final,
    measured: Measured,
    repeatable: bool,
    *,
    bad: list[str],
    left: tuple[str, ...],
) -> Row:
    """Hold the end of a run against the uninterrupted one. Pure."""
    same = same_state(final, measured) and sorted(final.lines) == sorted(measured.lines)
    other = differs(measured.lines, final.lines)
    why = other or (
        "the history misses steps" if same_state(final, measured) else "the last state is another"
    )
    equal = True if same and not other else None if not repeatable else False
    checks = (
        Check("exit code", code == 0, f"outlast run ended with {code} and not 0"),
        Check("generations", not bad, f"not whole under its final name: {'; '.join(bad)}"),
        Check("nothing left", not left, f"left when all was done: {'; '.join(left)}"),
        Check("replay", equal, f"{why}{'' if equal is False else ', as between two undisturbed runs'}"),
    )
    broken = [check for check in checks if check.held is False]
    open_ones = [check for check in checks if check.held is None]
    word: Word = "did not hold" if broken else "undecided" if open_ones else "held"
    what = f"done at step {max(final.lines, default=0)}" + (
        ", state as in the uninterrupted run" if same else ""
    )
    return Row(name, word, what, "", "; ".join(check.reason for check in broken or open_ones), checks)
