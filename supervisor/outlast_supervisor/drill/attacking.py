"""One attack on a scratch run: come to the point, strike, wait until the run has gone on, and look."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import time
from dataclasses import dataclass

from outlast_jobs import events
from outlast_jobs.jobfile import Job
from outlast_jobs.verify import scan
from outlast_supervisor import processes

from . import strike
from .attacks import EARLY, PRUNING
from .census import Census
from .model import Act, Attack, Case, Seen, Target
from .observe import Lines, observe
from .supervised import ScratchRun, Stuck

_SAVES = 4  # so many are waited for, where an attack needs generations


@dataclass(frozen=True)
class Measured:
    """What the uninterrupted run showed of the job."""

    lines: Lines
    last: int  # its last step
    state: str  # its state_sha256
    import_seconds: float
    step_seconds: float
    seconds: float
    evaluates: bool

    def patience(self, cadence: int) -> float:
        """Seconds until something that is waited for is called stuck."""
        return 60 + 20 * (self.import_seconds + cadence * self.step_seconds)


class RunOver(Exception):
    """The run was done before the attack could be made."""


class Attacker:
    """Makes attacks on one scratch run, whose trainer stands at a boundary before each and after."""

    def __init__(
        self, job: Job, scratch: ScratchRun, census: Census, measured: Measured, cadence: int, seed: int
    ) -> None:
        self._job, self._scratch, self._census = job, scratch, census
        self._measured, self._cadence, self._seed = measured, cadence, seed
        self._patience = measured.patience(cadence)
        self.repeatable = True

    def hold(self, attempt: int, step: int) -> bool:
        """Have the trainer stand at its next boundary of this attempt and step, or later; False: it is done."""
        self._scratch.gate.arm("step", attempt=attempt, step=step)
        self._scratch.gate.release()
        return self._scratch.stops_at_gate(f"step {max(step, 1)} of attempt {attempt}", self._patience)

    def seen(self) -> Seen:
        """The run as it is now."""
        return observe(self._scratch, self._census, self._measured.lines)

    def make(self, attack: Attack) -> Case:
        """Carry one attack out. Raises RunOver, CannotTry, or Stuck before it was made."""
        dealt = random.Random(f"{attack.name} {self._seed}")
        before = self.seen()
        if before.attempt == 1:
            self.repeatable = not before.difference
        if attack.target is Target.DISK:
            return self._disk(attack, before)
        if attack.target is Target.NEWEST:
            return self._rot(attack, before, dealt)
        struck = self._approach(attack, before, dealt)
        if attack.point != "step" and attack.point != "import":
            before = self.seen()
        how = "" if attack.point not in EARLY else f"attempt {struck - 1} was killed to come there"
        case = self._case(attack, before, struck, how)
        worker = self._scratch.worker(struck)
        self._arm_after(attack, before, struck)
        strike.send(attack, self._scratch, worker, strike.signals_of(attack, self._job.signals))
        return self._follow(case)

    # --- coming to the point ---

    def _approach(self, attack: Attack, before: Seen, dealt: random.Random) -> int:
        """Returns the attempt that is struck; who is at the point stands still, or is in the middle of it."""
        gate, point, attempt = self._scratch.gate, attack.point, before.attempt
        if point == "eval" and not self._measured.evaluates:
            raise strike.CannotTry("the job reports no evaluation")
        if point in EARLY:
            trainer = gate.stopped
            gate.arm(point, attempt=attempt + 1)
            gate.stopped = None
            if trainer is not None:
                processes.send(trainer, signal.SIGKILL)
            self._come(f"the {point} of attempt {attempt + 1}")
            if point == "import":
                gate.release()
                time.sleep(dealt.random() * 0.8 * self._measured.import_seconds)
            return attempt + 1
        if point == "step":
            gate.arm("step", attempt=attempt, step=before.steps.get(attempt, 0) + dealt.randint(1, 3))
            gate.release()
            self._come("a step")
            gate.release()
            time.sleep(dealt.random() * self._measured.step_seconds)
            return attempt
        gate.arm(point, role="supervisor" if point in PRUNING else "worker", attempt=0)
        gate.release()
        self._come(f'the point "{point}"')
        return attempt

    def _come(self, what: str) -> None:
        if not self._scratch.stops_at_gate(what, self._patience):
            raise RunOver

    # --- after the strike ---

    def _arm_after(self, attack: Attack, before: Seen, struck: int) -> None:
        """Where the run is to stand still again to be looked at."""
        known = before.steps.get(struck)
        if known is None:  # it has trained nothing yet, and begins after the newest generation
            known = max((_step(name) for name in before.generations), default=0)
        if attack.goes_on:
            later = 2 if attack.act is Act.USR1 else 1
            later += attack.act is Act.USR1 and attack.target is Target.SUPERVISOR
            self._scratch.gate.arm("step", attempt=struck, step=known + later)
        else:
            self._scratch.gate.arm("step", attempt=struck + 1)

    def _follow(self, case: Case) -> Case:
        """Wait until the run has gone on, start the supervisor again where it ended, and look."""
        scratch, attack, code = self._scratch, case.attack, None
        try:
            if attack.ends_supervisor:
                scratch.until(scratch.over, f"the end of outlast run after {attack.act}", self._patience)
                code = scratch.code
                if code != 0:
                    scratch.start()
            what = f"attempt {case.struck_attempt + (not attack.goes_on)} going on"
            held = scratch.stops_at_gate(what, self._patience)
        except Stuck as error:
            return dataclasses.replace(case, stuck=str(error), after=self.seen(), code=code)
        if not held and code is None and scratch.code != 0:
            code = scratch.code  # it ended, and nothing of the attack was to end it
        after = self.seen()
        return dataclasses.replace(
            case, after=after, code=code, finished=not held and scratch.code == 0, repeatable=self.repeatable
        )

    # --- the disk, and rot ---

    def _disk(self, attack: Attack, before: Seen) -> Case:
        before = self._with_generations(before, 1)
        worker = self._scratch.gate.stopped
        if worker is None:
            raise strike.CannotTry("no trainer is there to be struck")
        make = strike.full_disk if attack.act is Act.FULL else lambda scratch, _: strike.read_only(scratch)
        how, undo = make(self._scratch, worker)
        case = self._case(attack, before, before.attempt, how)
        try:
            held = self._until_noted(before.attempt, events.UNPROTECTED, before.unprotected)
            undo()
            if held:
                known = len(self._scratch.records(events.PROTECTED))
                held = self._until_noted(before.attempt, events.PROTECTED, known)
        except Stuck as error:
            return dataclasses.replace(case, stuck=str(error), after=self.seen())
        finally:
            undo()
        code = None if held or self._scratch.code == 0 else self._scratch.code
        return dataclasses.replace(
            case, after=self.seen(), code=code, finished=not held, repeatable=self.repeatable
        )

    def _until_noted(self, attempt: int, event: str, known: int) -> bool:
        """Go on for a cadence, and until the journal has more than so many of these; False: the run was done before.

        A save is due within a cadence and may be in flight until the next one, which waits for it: after two, what
        became of it is told, and only the supervisor may still have to note it.
        """
        last = self.seen().steps.get(attempt, 0)

        def noted() -> bool:
            return len(self._scratch.records(event)) > known

        for step in range(last + self._cadence + 1, last + 2 * self._cadence + 2):
            if not self.hold(attempt, step):
                return False
            if noted():
                return True
        with contextlib.suppress(Stuck):  # that it did not come is for the verdict to tell
            self._scratch.until(noted, event, self._patience)
        return True

    def _rot(self, attack: Attack, before: Seen, dealt: random.Random) -> Case:
        before = self._with_generations(before, 2)
        case = self._case(attack, before, before.attempt)
        self._scratch.gate.stopped = None
        self._scratch.send_all(signal.SIGKILL)
        self._scratch.end()
        newest = scan(self._scratch.run.checkpoints)[0]
        how = strike.damage(attack.act, newest, dealt)
        self._scratch.gate.arm("step", attempt=before.attempt + 1)
        return self._follow(dataclasses.replace(case, how=how, damaged=newest.name))

    def _with_generations(self, before: Seen, least: int) -> Seen:
        """Go on until so many generations are there, if that takes no more than some saves."""
        for _ in range(_SAVES):
            if len(before.generations) >= least:
                return before
            if not self.hold(before.attempt, before.steps.get(before.attempt, 0) + self._cadence + 1):
                raise RunOver
            before = self.seen()
        raise strike.CannotTry(f"the run does not come to have {least} generations")

    def _case(self, attack: Attack, before: Seen, struck: int, how: str = "") -> Case:
        return Case(attack, before, before, struck, self._cadence, library=True, how=how)


def _step(name: str) -> int:
    from outlast_jobs.generation import GenerationName

    parsed = GenerationName.parse(name)
    return parsed.step if parsed is not None else 0
