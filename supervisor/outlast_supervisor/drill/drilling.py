"""A whole drill: the run that nothing disturbs, then scratch runs under attack until all is tried or time is up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from outlast_jobs import events
from outlast_jobs.contract import Answer
from outlast_jobs.ending import Kind
from outlast_jobs.jobfile import Job
from outlast_jobs.journal import Record

from . import attacks, native, verdicts
from .attacking import Attacker, Measured, RunOver
from .census import Census
from .ends import end_of, final_state
from .model import Act, Attack, Row
from .observe import observe
from .scratch import Scratch
from .strike import CannotTry
from .supervised import ScratchRun, Stuck

STEPS = 60
"""Steps of a scratch run, unless the drill is told how many."""
_SAVES = 12  # in a scratch run
_START = 600.0  # seconds for the uninterrupted run to show that its trainer lives
_HANG = 2.0  # seconds of hang.min where a hang is waited for
_TRIES = 3  # runs in which an attack is tried before it is called impossible
_LOOKED_AT = 30.0  # seconds until a job that has not imported the library is taken for one without it


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    job: Job
    attacks: tuple[Attack, ...]
    minutes: float = 5.0
    seed: int = 1
    steps: int = STEPS
    keep: bool = False

    @property
    def cadence(self) -> int:
        """Steps between two saves of a scratch run."""
        return max(1, self.steps // _SAVES)


@dataclass(frozen=True)
class Drill:
    """What a drill came to."""

    options: Options
    began: float
    seconds: float
    answer: Answer
    word: str
    reason: str
    rows: tuple[Row, ...]
    left: tuple[str, ...] = ()  # attacks that did not fit into the time
    notes: tuple[str, ...] = ()
    kept: Path | None = None


class Driller:
    """Runs a drill; ``told`` is called with each line for people."""

    def __init__(self, options: Options, told: Callable[[str], None]) -> None:
        self._options, self._tell = options, told
        self._scratch = Scratch(options.job)
        self._census = Census()
        self._deadline = time.monotonic() + 60 * options.minutes
        self._runs = 0
        self._rows: list[Row] = []
        self._notes: list[str] = []
        self._queue = attacks.order(options.attacks, options.seed)
        self._tries: Counter[Attack] = Counter()
        self._trouble = False

    def drill(self) -> Drill:
        """Carry it out. Nothing that was started lives on, however this ends."""
        began, clock, failed, kept = time.time(), time.monotonic(), False, None
        try:
            found = self._drill(began)
            failed = found.word == "did not hold" or self._trouble
        finally:
            self._census.kill_all()
            self._census.close()
            if self._options.keep or failed:
                kept = self._scratch.keep()
            else:
                self._scratch.remove()
        return replace(found, seconds=time.monotonic() - clock, kept=kept)

    # --- stages ---

    def _drill(self, began: float) -> Drill:
        self._tell("the uninterrupted run begins")
        measured = self._reference()
        trouble = measured if isinstance(measured, str) else ""
        self._trouble = bool(trouble)
        if isinstance(measured, Measured):
            self._notes.append(
                f"{measured.last} steps a run, saved every {self._options.cadence}; "
                f"a start takes {measured.import_seconds:.1f} s, a step {measured.step_seconds * 1000:.0f} ms"
            )
            while self._queue and not self._late():
                self._one_run(measured)
        elif measured is None:
            self._notes.append("no trainer attached: the job is attacked as a bare command")
            options = self._options
            self._queue = native.attack(
                self._queue,
                self._new_run,
                self._census,
                self._late,
                self._told,
                options.seed,
                options.job.signals,
            )
        left = [attack.name for attack in self._queue]
        answer, word, reason = verdicts.whole(self._rows, len(left))
        if trouble:
            answer, word, reason = Answer.UNDECIDED, "undecided", trouble
        return Drill(
            self._options,
            began,
            0.0,
            answer,
            word,
            reason,
            tuple(self._rows),
            tuple(left),
            tuple(self._notes),
        )

    def _reference(self) -> Measured | str | None:
        """The run that nothing disturbs; None where no trainer attached, or why there is nothing to attack."""
        run, began = self._new_run(), time.monotonic()
        run.start()

        def blind() -> bool:
            return time.monotonic() - began > _LOOKED_AT and not run.gate.seen("library")

        def attached() -> list[Record]:
            return run.records(events.ATTEMPT_ATTACHED)

        def known() -> bool:
            return run.over() or bool(attached()) or bool(run.records(events.ATTEMPT_ENDED)) or blind()

        try:
            run.until(known, "the start of the uninterrupted run", _START)
            if attached() or run.records(events.ATTEMPT_ENDED):
                longest = max(_START, 60 * self._options.minutes)
                run.until(
                    lambda: run.over() or bool(_failed(run)), "the end of the uninterrupted run", longest
                )
        except Stuck as error:
            return str(error)
        if _failed(run) or run.code not in (None, 0):
            return f"the uninterrupted run failed: {_failed(run) or f'outlast run ended with {run.code}'}"
        if not attached():
            run.end()
            return None
        if not run.gate.seen("worker"):
            return "the worker's Python does not load sitecustomize (-S, -I or -E), so that no exact point is known"
        seen = observe(run, self._census, {})
        lines = final_state(run)
        if not lines.lines or not lines.state:
            return "the uninterrupted run trained no step, or left no state to compare with"
        started = run.records(events.ATTEMPT_STARTED)[0]
        times = [float(line["t"]) for line in lines.lines.values() if "t" in line]
        each = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        imports = max(0.01, attached()[0].mono - started.mono)
        return Measured(
            lines.lines,
            max(seen.steps.values()),
            lines.state,
            imports,
            each,
            time.monotonic() - began,
            run.gate.seen("eval"),
        )

    def _one_run(self, measured: Measured) -> None:
        options = self._options
        run = self._new_run(hang=_HANG if self._queue[0].act is Act.HANG else None)
        attacker = Attacker(options.job, run, self._census, measured, options.cadence, options.seed)
        run.start()
        try:
            going = attacker.hold(1, 1)
            while going and self._queue and not self._late():
                attack = self._queue[0]
                if (attack.act is Act.HANG) != (run.hang is not None) or self._near_end(
                    attack, attacker, measured
                ):
                    break
                going = self._one(attacker, attack, run)
            if not going and not run.over():
                return  # it is stuck, and was told
            run.gate.disarm()
            run.gate.release()
            run.until(
                run.over, "the end of the run", measured.patience(options.cadence) + 2 * measured.seconds
            )
        except Stuck as error:
            self._told(Row(f"run {self._runs - 1}", "did not hold", reason=str(error)))
            return
        finally:
            if not run.over():
                run.end()
        self._told(end_of(run, self._census, measured, attacker.repeatable, f"end of run {self._runs - 1}"))

    def _one(self, attacker: Attacker, attack: Attack, run: ScratchRun) -> bool:
        """Make one attack; whether the run can be attacked again."""
        clock = time.monotonic()
        self._tries[attack] += 1
        try:
            case = attacker.make(attack)
        except CannotTry as error:
            self._queue.remove(attack)
            self._told(Row(attack.name, "not tried", reason=str(error)))
            return run.gate.stopped is not None
        except RunOver:
            if self._tries[attack] >= _TRIES:
                self._queue.remove(attack)
                why = f"{_TRIES} runs were done before they came to this point"
                self._told(Row(attack.name, "not tried", reason=why))
            return False
        self._queue.remove(attack)
        self._told(replace(verdicts.judge(case), seconds=time.monotonic() - clock))
        return not case.stuck and not case.finished and run.gate.stopped is not None

    def _near_end(self, attack: Attack, attacker: Attacker, measured: Measured) -> bool:
        """Whether the run is so far that this attack needs another one."""
        seen = attacker.seen()
        step, cadence = max(seen.steps.values(), default=0), self._options.cadence
        need = 4 if attack.point in (*attacks.PRUNING, "damage", "disk") else 2
        return (
            step + need * cadence + 2 > measured.last
            and self._tries[attack] < _TRIES
            and step > need * cadence
        )

    # --- small ---

    def _new_run(self, hang: float | None = None) -> ScratchRun:
        folder = self._scratch.path / f"run-{self._runs}"
        self._runs += 1
        options = self._options
        return ScratchRun(
            options.job, folder, self._census, every_steps=options.cadence, stop_at=options.steps, hang=hang
        )

    def _told(self, row: Row) -> None:
        self._rows.append(row)
        why = f": {row.reason}" if row.reason else ""
        self._tell(f"{row.attack}: {row.verdict}{why} ({len(self._queue)} to come)")

    def _late(self) -> bool:
        return time.monotonic() > self._deadline


def _failed(run: ScratchRun) -> str:
    """How an attempt of a run that nothing disturbed ended otherwise than done; empty where none did."""
    ended = [record.data for record in run.records(events.ATTEMPT_ENDED)]
    return next((str(d.get("reason")) for d in ended if d.get("outcome") != Kind.DONE), "")
