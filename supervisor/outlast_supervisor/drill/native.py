"""Attacks on a job whose trainer never attaches: what can be seen of it is judged, and the rest is told."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence

from outlast_jobs.jobfile import Signals

from . import strike
from .census import Census
from .model import Act, Attack, Case, Row, Seen
from .observe import observe
from .supervised import ScratchRun, Stuck
from .verdicts import judge

_PATIENCE = 60.0
_LIVES = 0.5  # seconds after its launch at which a worker is struck at the earliest
_SPREAD = 2.0
_POINTS = ("import", "step")


def attack(
    attacks: Sequence[Attack],
    new_run: Callable[[], ScratchRun],
    census: Census,
    late: Callable[[], bool],
    told: Callable[[Row], None],
    seed: int,
    signals: Signals,
) -> list[Attack]:
    """Strike at instants drawn from the seed, and tell each row as it is found; returns what did not fit."""
    run: ScratchRun | None = None
    left = list(attacks)
    while left and not late():
        one = left.pop(0)
        if one.point not in _POINTS or one.act is Act.HANG:
            told(Row(one.name, "not tried", reason="this point is not seen without the library"))
            continue
        if run is None or run.over():
            run = new_run()
            run.start()
        dealt = random.Random(f"{one.name} {seed}")
        told(_one(one, run, census, dealt, strike.signals_of(one, signals)))
    if run is not None and not run.over():
        run.end()
    return left


def _one(attack: Attack, run: ScratchRun, census: Census, dealt: random.Random, number: int) -> Row:
    clock = time.monotonic()
    try:
        run.until(lambda: run.over() or _newest(census) > 0, "a worker", _PATIENCE)
        time.sleep((0.0 if attack.point == "import" else _LIVES) + dealt.random() * _SPREAD)
        before = _seen(run, census)
        worker = run.worker(before.attempt)
        if run.over() or worker is None:
            return Row(attack.name, "not tried", reason="the job was over before")
        case = Case(attack, before, before, before.attempt, 0, library=False)
        strike.send(attack, run, worker, number)
        return dataclasses.replace(judge(_follow(case, run, census)), seconds=time.monotonic() - clock)
    except strike.CannotTry as error:
        return Row(attack.name, "not tried", reason=str(error))
    except Stuck as error:
        return Row(attack.name, "undecided", reason=str(error))


def _follow(case: Case, run: ScratchRun, census: Census) -> Case:
    code, struck = None, case.struck_attempt
    try:
        if case.attack.ends_supervisor:
            run.until(run.over, "the end of outlast run", _PATIENCE)
            code = run.code
            if code != 0:
                run.start()
        if case.attack.act is Act.STOP or case.attack.act is Act.USR1:
            time.sleep(_LIVES)
        else:
            run.until(lambda: run.over() or _newest(census) > struck, "the next attempt", _PATIENCE)
    except Stuck as error:
        return dataclasses.replace(case, stuck=str(error), after=_seen(run, census), code=code)
    return dataclasses.replace(case, after=_seen(run, census), code=code, finished=run.code == 0)


def _seen(run: ScratchRun, census: Census) -> Seen:
    return observe(run, census, {})


def _newest(census: Census) -> int:
    return max(census.alive().values(), default=0)
