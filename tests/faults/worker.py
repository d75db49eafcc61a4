"""A worker of the small world: it trains, saves and ends as a kind of job does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.restart import Failure
from outlast_supervisor import events as ev

if TYPE_CHECKING:
    from tests.faults.world import World

KINDS = (
    "train",  # does as it is told
    "crash",  # raises at a step, always the same
    "flaky",  # dies of a signal some steps after each start
    "import",  # never comes so far as to attach
    "hang",  # falls silent some steps after each start
    "deaf",  # trains on, whatever it is told
    "sick",  # has a loss that is no number at a step
    "bare",  # attaches never and ends well
    "strays",  # leaves a process behind
    "noexec",  # cannot be executed
    "bad",  # finds that what it resumes from is not whole
    "slow",  # needs minutes to attach
)
AT = 37  # the step at which the bad things happen
EVERY = 10  # steps from save to save


@dataclass
class Worker:
    """One attempt's process."""

    world: World
    attempt: int
    life: int
    begun: int  # the step that it resumes from
    resumed: str | None
    kind: str
    alive: bool = True
    attached: bool = False
    step: int = 0
    stopping: bool = False
    saves: bool = False
    healthy: bool = True
    silent_at: float = 0.0
    sealed_at: float = 0.0
    longest: float = 0.0
    trained: int = field(default=0)

    def __post_init__(self) -> None:
        self.step = self.begun
        self.silent_at = self.sealed_at = self.world.now
        if self.kind == "import":
            self.world.after(0.5, lambda: self._end(1, None))
        elif self.kind == "bare":
            self.world.after(500.0, lambda: self._end(0, None))
        else:
            self.world.after(300.0 if self.kind == "slow" else 2.0, self._attach)

    @property
    def me(self) -> ProcessIdentity:
        return ProcessIdentity(self.attempt, self.attempt, "boot")

    # -- signals -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The stop signal: before READY it is the end, after it a flag."""
        if self.kind in ("deaf", "hang"):
            return
        self.stopping = True
        if not self.attached:
            self.world.after(0.01, lambda: self._end(None, 15))

    def save(self) -> None:
        """The save signal."""
        self.saves = True

    def kill(self) -> None:
        """SIGKILL."""
        self.world.after(0.01, lambda: self._end(None, 9))

    # -- training ------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        if not self.alive:
            return
        if self.kind == "bad" and self.resumed is not None:
            self._say(ev.FoundBad(self.resumed, "sha256"))
            self.world.gens = [g for g in self.world.gens if str(g.name) != self.resumed]
            self._end(65, None)
            return
        self.attached = True
        self._say(ev.Attached(self.me, 0, self.begun, self.resumed))
        if self.step >= self.world.total:
            self._finish()
            return
        self._go_on()

    def _go_on(self) -> None:
        self.world.after(self.world.step_time, self._boundary)

    def _boundary(self) -> None:
        if not self.alive:
            return
        if self.kind == "hang" and self.trained >= 5:
            return
        self.step += 1
        self.trained += 1
        if self.kind == "crash" and self.step == AT:
            self._say(ev.Raised(Failure("ValueError", "x", "a.py:1", AT - 1, "train")))
            self._end(1, None)
            return
        if self.kind == "flaky" and self.trained >= 13:
            self._end(None, 11)
            return
        self._say(ev.Reported(self.step, self.world.total, "0.5", "train"))
        if self.kind == "sick" and self.step >= AT:
            self.healthy = False
            self._say(ev.Sick(self.step))
        last = self.step >= self.world.total
        if last or self.stopping or self.saves or self.step % EVERY == 0:
            self.saves = False
            self._say(ev.Reported(self.step, self.world.total, None, "save"))
            self.world.after(self.world.save_time, self._seal)
        else:
            self._go_on()

    def _seal(self) -> None:
        if not self.alive:
            return
        name = self.world.seal(self, self.healthy)
        if name is None:
            self._say(ev.SaveFailed("EIO"))
            if self.stopping:
                self._end(73, None)
            else:
                self._go_on()
            return
        self.sealed_at = self.world.now
        self._say(ev.Sealed(name, self.step, 1, self.world.save_time))
        self._say(ev.Reported(None, None, None, "train"))
        if self.step >= self.world.total:
            self._finish()
        elif self.stopping:
            self._say(ev.Said("saved"))
            self._end(75, None)
        else:
            self._go_on()

    def _finish(self) -> None:
        self._say(ev.Said("done"))
        self._end(0, None)

    def _say(self, event: ev.Event) -> None:
        if not isinstance(event, ev.Attached):
            self.longest = max(self.longest, self.world.now - self.silent_at)
        self.silent_at = self.world.now
        self.world.heard(self, event)

    def _end(self, code: int | None, number: int | None) -> None:
        if self.alive:
            self.alive = False
            self.world.ended(self, code, number)
