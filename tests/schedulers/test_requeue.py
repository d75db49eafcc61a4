"""Whether a Slurm job is queued again: rows that a person can check, and rules that hold over every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from outlast_supervisor.schedulers.requeue import Facts, Left, No, Requeue, asks_controller, verdict
from outlast_supervisor.schedulers.slurm import Job

END, WARN = 1000.0, 120.0
DEADLINE = Left("deadline", "the deadline (the end of Slurm job 7), 3 s left")
WARNING = Left("warning", "SIGUSR1, 3 s left")
TERM, USR2 = Left("signal", "SIGTERM"), Left("signal", "SIGUSR2")
BY_A_PERSON = [Left("signal", name) for name in ("SIGINT", "SIGQUIT", "SIGHUP")] + [
    Left("now", "a second SIGINT")
]
LEFTS = [DEADLINE, WARNING, TERM, USR2, Left("", ""), *BY_A_PERSON]

RUNS = Job("RUNNING", "None", 0, batch=True)
CANCELLED = Job("COMPLETING", "None", 0, batch=True)
TIMED_OUT = Job("COMPLETING", "TimeLimit", 0, batch=True)
PREEMPTED = Job("RUNNING", "None", 0, batch=True, preempted=True)
PREEMPT_CANCEL = Job("COMPLETING", "None", 0, batch=True, preempted=True)
QUEUED = Job("COMPLETING", "None", 1, batch=True)
PENDS = Job("PENDING", "BeginTime", 0, batch=True)
SALLOC = Job("RUNNING", "None", 0, batch=False)
JOBS = [None, RUNS, CANCELLED, TIMED_OUT, PREEMPTED, PREEMPT_CANCEL, QUEUED, PENDS, SALLOC]

EARLY, WARNED_EARLY, IN_TIME, LATE = 100.0, END - WARN - 30, END - WARN, END + 20


def facts(left: Left, at: float, end: float | None = END, job: Job | None = None, **more: object) -> Facts:
    return replace(Facts(75, left, at, end, WARN, job=job), **more)


ROWS: list[tuple[Facts, str]] = [
    (facts(DEADLINE, IN_TIME, job=RUNS), "requeue"),
    (facts(WARNING, IN_TIME, job=PREEMPTED), "requeue"),
    (facts(WARNING, EARLY, end=None), "requeue"),
    (facts(Left("deadline", "the deadline (time_limit of the job)"), EARLY, end=None, job=RUNS), "requeue"),
    (facts(TERM, EARLY), "cancel"),
    (facts(TERM, EARLY, job=RUNS), "slurm.warn"),
    (facts(TERM, EARLY, job=CANCELLED), "cancel"),
    (facts(TERM, EARLY, end=None), "no end of the job is known"),
    (facts(TERM, WARNED_EARLY), "cancel"),
    (facts(TERM, IN_TIME), "requeue"),
    (facts(TERM, LATE, job=TIMED_OUT), "requeue"),
    (facts(TERM, EARLY, end=None, job=TIMED_OUT), "requeue"),
    (facts(TERM, IN_TIME, job=CANCELLED), "cancel"),
    (facts(TERM, EARLY, job=PREEMPTED), "requeue"),
    (facts(TERM, EARLY, job=PREEMPT_CANCEL), "requeue"),
    (facts(TERM, EARLY, job=QUEUED), "already"),
    (facts(TERM, EARLY, job=PENDS), "already"),
    (facts(USR2, EARLY), "cancel"),
    (facts(USR2, WARNED_EARLY), "requeue"),
    (facts(DEADLINE, IN_TIME, job=CANCELLED), "cancel"),
    (facts(DEADLINE, IN_TIME, job=QUEUED), "already"),
    (facts(DEADLINE, IN_TIME, job=QUEUED, restarts=1), "cancel"),
    (facts(DEADLINE, IN_TIME, job=SALLOC), "interactive"),
    (facts(DEADLINE, IN_TIME, by_hand="it was started by hand"), "by hand"),
    (facts(DEADLINE, IN_TIME, policy="never"), "requeue: never"),
    (facts(BY_A_PERSON[0], LATE, job=RUNS), "a person"),
    (facts(BY_A_PERSON[-1], LATE, job=RUNS), "at once"),
    (facts(DEADLINE, IN_TIME, code=0), "done"),
    (facts(DEADLINE, IN_TIME, code=70), "held"),
    (facts(DEADLINE, IN_TIME, code=69), "another supervisor"),
    (facts(DEADLINE, IN_TIME, code=65), "checkpoint"),
    (facts(DEADLINE, IN_TIME, code=73), "cannot be written"),
]


@pytest.mark.parametrize(("given", "expected"), ROWS, ids=[f"{n}-{word}" for n, (_, word) in enumerate(ROWS)])
def test_rows(given: Facts, expected: str) -> None:
    """Each row is decided as it says, with a reason that says why."""
    found = verdict(given)
    if expected == "requeue":
        assert isinstance(found, Requeue), found
        assert found.reason
    else:
        assert isinstance(found, No), found
        assert expected in found.reason


def everything(codes: tuple[int, ...] = (70, 75), jobs: Sequence[Job | None] = JOBS) -> Iterator[Facts]:
    for code, left, at, end, job, policy, hand, restarts in itertools.product(
        codes,
        LEFTS,
        (EARLY, WARNED_EARLY, IN_TIME - 0.001, IN_TIME, END, LATE),
        (None, END),
        jobs,
        ("auto", "slurm", "resubmit", "never"),
        ("", "by hand"),
        (0, 1),
    ):
        yield Facts(code, left, at, end, WARN, policy, hand, restarts, job)


def test_every_other_code_stays() -> None:
    """Of all 256 exit codes 75 alone can bring a job back."""
    for code in range(256):
        assert isinstance(verdict(facts(DEADLINE, IN_TIME, code=code)), Requeue) == (code == 75)


def test_only_what_may_be_queued_again_is() -> None:
    """Over every combination: no code but 75, no person's stop, no cancel and no foreign job is queued again."""
    for given in everything():
        found = verdict(given)
        if isinstance(found, No):
            continue
        job = given.job
        assert given.code == 75, given
        assert given.policy != "never", given
        assert not given.by_hand, given
        assert given.left.of, given
        assert given.left not in BY_A_PERSON, given
        assert job is None or (job.batch and job.state != "PENDING" and job.restarts <= given.restarts), given
        known_over = job is not None and (job.reason == "TimeLimit" or job.preempted)
        if given.left.of == "signal" and not known_over:
            assert given.end is not None, given
            early = 60 if given.left == USR2 else 0
            assert given.told_at >= given.end - WARN - early, given
        assert job is None or known_over or job.state != "COMPLETING", given


def test_what_the_machine_takes_is_queued_again() -> None:
    """Over every combination: what a deadline, a warning or the job's end stopped is queued again, whoever answers."""
    ways = {"auto": ("requeue", "resubmit"), "slurm": ("requeue",), "resubmit": ("resubmit",)}
    for given in everything((75,)):
        if given.policy == "never" or given.by_hand or given.restarts:
            continue
        by_term = given.left == TERM and (
            given.job == TIMED_OUT
            or (given.job in (None, RUNS) and given.end and given.told_at >= END - WARN)
        )
        by_end = given.left in (DEADLINE, WARNING) and given.job in (None, RUNS, TIMED_OUT, PREEMPTED)
        if by_term or by_end:
            found = verdict(given)
            assert isinstance(found, Requeue), given
            assert found.how == ways[given.policy], given


def test_the_controller_is_asked_only_where_it_matters() -> None:
    """Over every combination: where it is not asked, nothing that it could say would change the verdict."""
    for given in everything(jobs=(None,)):
        if not asks_controller(given):
            assert {type(verdict(replace(given, job=job))) for job in JOBS} == {No}, given
