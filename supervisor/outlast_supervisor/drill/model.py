"""The words of a drill: attacks, what was seen of one, and what it came to."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Word = Literal["held", "did not hold", "undecided", "not tried"]


class Act(enum.StrEnum):
    """What is done."""

    TERM = "TERM"  # the job's stop signal
    USR1 = "USR1"  # the job's save signal
    KILL = "KILL"
    STOP = "STOP"  # and CONT a moment later
    HANG = "HANG"  # STOP without CONT
    FULL = "full"
    READ_ONLY = "read-only"
    FLIP = "flip"
    CUT = "cut"
    INDEX = "index"


class Target(enum.StrEnum):
    """To whom."""

    TRAINER = "trainer"
    GROUP = "group"  # the worker's whole process group
    SUPERVISOR = "supervisor"
    RUN = "run"  # the supervisor and all that it started, at once
    DISK = "disk"
    NEWEST = "newest"  # the newest generation, between two starts


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: at this point, this act, on that target."""

    point: str
    act: Act
    target: Target

    @property
    def name(self) -> str:
        return f"{self.point}/{self.act}/{self.target}"

    @property
    def notice(self) -> bool:
        """Whether it is a notice with time for a save, so that nothing may be lost."""
        return self.act in (Act.TERM, Act.USR1)

    @property
    def goes_on(self) -> bool:
        """Whether the same attempt is expected to go on."""
        return self.act in (Act.USR1, Act.STOP, Act.FULL, Act.READ_ONLY)

    @property
    def ends_supervisor(self) -> bool:
        """Whether the supervisor is to end by it."""
        struck = self.target in (Target.SUPERVISOR, Target.RUN) and self.act in (Act.TERM, Act.KILL)
        return struck or self.target is Target.NEWEST


@dataclass(frozen=True, slots=True)
class Seen:
    """What the scratch run was like at one moment, from its disk and its processes."""

    attempt: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)  # attempt -> its last step, where it trained
    restored: Mapping[int, int] = field(default_factory=dict)  # attempt -> the step that it restored
    first: Mapping[int, int] = field(default_factory=dict)  # attempt -> its first step
    generations: Mapping[str, str] = field(default_factory=dict)  # final name -> "" or what is wrong with it
    sealed: tuple[str, ...] = ()  # acknowledged, in order
    dropped: frozenset[str] = frozenset()  # by the retention policy
    aside: frozenset[str] = frozenset()  # names of those that were set aside, as they were
    unprotected: int = 0  # times that the run was marked so
    protected: int = 0
    hung: int = 0
    gave_up: str = ""
    difference: str = ""  # of any step from the uninterrupted run
    compared: int = 0  # steps that were trained again after a restore, and equal
    leftovers: tuple[str, ...] = ()  # processes of attempts before this one
    twice: tuple[str, ...] = ()  # trainers that lived at once


@dataclass(frozen=True, slots=True)
class Case:
    """All that a verdict on one attack is made from."""

    attack: Attack
    before: Seen
    after: Seen
    struck_attempt: int  # the attempt that was struck
    cadence: int  # steps
    library: bool  # whether a trainer attached
    repeatable: bool = True  # whether an undisturbed attempt did as the reference did
    finished: bool = False  # the run was done before it was looked at again
    code: int | None = None  # the supervisor's, where it ended: negative for a signal
    stuck: str = ""  # what was waited for in vain
    how: str = ""  # how the attack was carried out, where there are several ways
    damaged: str = ""  # the generation that was damaged


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what was found of it: None where it could not be seen."""

    promise: str
    held: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What an attack came to."""

    attack: str
    verdict: Word
    what: str = ""
    lost: str = ""
    reason: str = ""
    checks: tuple[Check, ...] = ()
    seconds: float = 0.0
