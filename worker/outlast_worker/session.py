"""One attempt under a supervisor: attached, answering signals at boundaries, sealing, and its last word."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec
import torch.distributed

from outlast_jobs.cadence import due
from outlast_jobs.contract import PROTOCOL, Env, ExitCode, ExitWord, Field, Phase
from outlast_jobs.errors import Fenced, IntegrityError
from outlast_jobs.generation import META, writing_folder
from outlast_jobs.locks import hold_shared
from outlast_jobs.rundir import RunDirectory
from outlast_worker import children, output, sole
from outlast_worker.boundary import GO_ON, Decision, Facts
from outlast_worker.context import RunContext, refuse_ranks
from outlast_worker.failing import failure
from outlast_worker.fingerprint import verdict
from outlast_worker.guardian import Guardian
from outlast_worker.inherited import Inherited
from outlast_worker.leaving import Leaving
from outlast_worker.metrics import MetricsWriter
from outlast_worker.notify import Notifier
from outlast_worker.output import say
from outlast_worker.phases import Phases
from outlast_worker.restoring import Loaded, bad_report
from outlast_worker.resume import drift, furthest, load
from outlast_worker.sealing import Descriptions, Seals
from outlast_worker.signals import Signals

_ROOM = 3000
"""Bytes of JSON that surely fit into one notification beside its key."""


class RestoreNotHonoured(SystemExit):
    """The script trains other steps than those after the restored one. Saving would bury good generations."""


class Session:
    """Everything that only exists under a supervisor. The Checkpointer has none in a plain run."""

    def __init__(self, context: RunContext, every_steps: int | None, every_seconds: float | None) -> None:
        output.guard()
        self.context = context = furthest(context)
        self.notifier = Notifier.from_env()
        self.signals = Signals()
        self.guardian = Guardian.from_env(self.notifier)
        self.phases = Phases(self._announce)
        self.seals = Seals(context, self.notifier, say, self.sick)
        self._inherited = Inherited.of(os.environ.pop(Env.BUFFER, ""), context.run_id)
        if self._inherited is not None:
            self.seals.meanwhile.buffers.inherit(self._inherited.fd)
        self.metrics: MetricsWriter | None = None
        self.before_leaving: Callable[[], None] = lambda: None
        self.loaded: Loaded | None = None
        self.restored_step = 0
        self._policy = context.policy(every_steps, every_seconds)
        self._last_step = 0
        self._last_time = time.monotonic()
        self._final_step: int | None = None
        self._alive: int | None = None
        self._sole = False
        self._told_first = False
        self._told_sick = False
        self._told_taken: set[str] = set()
        self.over: SystemExit | None = None
        """What ends this worker, once that is said: a script that catches it has not trained to its end."""

    # --- the start ---

    def load(self) -> Loaded | None:
        """Read and verify what to resume from; a mismatch ends the worker with 65, to fall back."""
        self._announce(Phase.RESTORE)
        try:
            self.loaded = load(self.context, self._inherited)
        except IntegrityError as error:
            self._bad(error)
        if self._inherited is not None and self._inherited.refused:
            say(f"the copy in memory was of no use, the disk was: {self._inherited.refused}")
        if self.loaded is not None:
            index = self.loaded.index
            self.restored_step = self._last_step = index.step
            self._final_step = index.step if index.final and self.context.own_resume else None
            self.seals.expect(index.total_bytes, len(index.files))
        return self.loaded

    def be_sole(self) -> None:
        """Raises NotAlone, or RuntimeError for several ranks.

        The supervisor hears nothing of either: it is no failure of the trainer that it knows.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            refuse_ranks(str(torch.distributed.get_world_size()))
        if not self._sole:
            sole.be_sole(writing_folder(self.context.checkpoints, self.context.attempt))
            self._sole = True

    def attach(self) -> None:
        """Show that this process lives, and let the signals in."""
        self.notifier.own()
        self._alive = hold_shared(RunDirectory(self.context.run))
        self.signals.install()
        children.end_daemons_at_exit()

    def ready(self, descriptions: Descriptions, more_drift: list[str]) -> None:
        """The restore is done: attach to the supervisor."""
        loaded, name, found = self.loaded, None, list[str]()
        self.seals.descriptions = descriptions
        if loaded is not None:
            name = str(loaded.name)
            found = drift(loaded.index, descriptions, own=self.context.own_resume) + more_drift
        if found and self.context.strict:
            self.refuse(f"identity is strict and this environment differs: {'; '.join(found)}")
        fields: dict[str, object] = {
            Field.READY: 1,
            Field.PROTOCOL: PROTOCOL,
            Field.RANK: self.context.rank,
            Field.STEP: self.restored_step,
        }
        if name is not None:
            fields[Field.RESTORED] = name
        self.metrics = MetricsWriter(
            RunDirectory(self.context.run).attempt_metrics(self.context.attempt),
            self.context.attempt,
            self.restored_step,
            name,
        )
        self.notifier.send(fields, important=True)
        if found:
            self.notifier.send({Field.DRIFT: _json_list(found)}, important=True)
        self.phases.become(Phase.TRAIN)
        if name is not None:
            memory = ", read from memory" if self._inherited is not None and self._inherited.used else ""
            say(f"resumed from {name} at step {self.restored_step} ({verdict(found)}{memory})")
        if self.context.no_copy:
            say(
                "the attempt before may have died of too little memory: nothing is copied from now on, "
                "and the training waits for each save"
            )
        if loaded is not None and (self._policy.every_steps or self._policy.every_seconds):
            self.seals.prepare([f.bytes for name, f in loaded.index.files.items() if name != META])
        else:
            self.seals.meanwhile.buffers.disinherit()
        self.loaded = None  # the restored tensors are in the model now; this copy only costs memory
        self._last_time = time.monotonic()

    # --- at a boundary ---

    def facts(self, step: int, *, finished: bool) -> Facts:
        """What the decision at a boundary or in a poll is made from."""
        self._keep_signals()
        sealed, meanwhile = self.seals.newest, self.seals.meanwhile
        policy = self._policy
        if meanwhile.flight is not None:  # of two saves one waits for the other, and time can
            policy = msgspec.structs.replace(policy, every_seconds=None)
        found = due(step, time.monotonic(), self._last_step, self._last_time, policy, sealed is not None)
        return Facts(
            step=step,
            restored_step=self.restored_step,
            sealed_step=sealed.step if sealed is not None else None,
            finished=finished,
            finalised=self._final_step == step,
            stop=self.stop_reason(),
            asked=self.signals.save_requested,
            due=meanwhile.redo or (found.reason if found is not None else None),
        )

    def _keep_signals(self) -> None:
        for name in self.signals.retake():
            if name not in self._told_taken:
                self._told_taken.add(name)
                say(
                    f"something set a handler for {name} after the Checkpointer was entered: it is taken back, so "
                    f"that a {name} saves; set your own before that, and clean up in finally blocks"
                )

    def settled(self, decide: Callable[[], Decision]) -> Decision:
        """The decision, once no save in flight has a say in it any longer: one that counts, or stands in the way."""
        self.seals.meanwhile.close()
        self._settle(wait=False)
        decision = decide()
        if decision != GO_ON and self.seals.meanwhile.flight is not None:
            self.land()
            decision = decide()
        return decision

    def land(self) -> None:
        """Wait for the save in flight, if there is one."""
        if self.seals.meanwhile.flight is not None:
            self._announce(Phase.SAVE)
            self._settle(wait=True)
            self._announce(self.phases.current)

    def _settle(self, *, wait: bool) -> None:
        try:
            self.seals.settle(wait=wait)
        except Fenced as error:
            self._fenced(error)

    def stop_reason(self) -> str | None:
        """Why to stop at the next boundary; many signals are one reason."""
        if count := self.signals.stops:
            times = f" (received {count} times)" if count > 1 else ""
            return f"{self.signals.stopped_by.name}{times}"
        return "the supervisor is gone" if self.guardian.gone() else None

    def carry_out(
        self,
        decision: Decision,
        step: int,
        capture: Callable[[], dict[str, Any]],
        sick: bool,
        *,
        live: bool = True,
    ) -> None:
        """Seal, leave, both or neither. Leaving raises SystemExit. ``live`` where it is the training's own state."""
        saved = True
        if decision.seal is not None:
            go_on = live and decision.leave is None and not decision.final
            reason, final = decision.seal, decision.final
            saved = self.seal(step, capture, reason=reason, final=final, sick=sick, go_on=go_on)
        if decision.leave is not None:
            self._leave(step, decision.leave, saved)

    def seal(
        self,
        step: int,
        capture: Callable[[], dict[str, Any]],
        *,
        reason: str,
        final: bool,
        sick: bool,
        go_on: bool = False,
    ) -> bool:
        """Save the state of this boundary; False where that failed and training goes on.

        With ``go_on`` it may be saved while the training does.
        """
        self.land()  # at most one is in flight
        self.signals.answer_saves()  # one that comes from now on may mean a later state
        # Set before the save, failed or not: a failed one is tried again when the next is due, not each step.
        self._last_step, self._last_time = step, time.monotonic()
        state = capture()
        if go_on and self.seals.begin(
            state,
            reason=reason,
            sick=sick,
            before=self._sync,
            since=self._last_time,
            goes_on=lambda: self._announce(self.phases.current),
        ):
            return True
        self.seals.meanwhile.redo = None
        self._sync()
        try:
            sealed = self.seals.seal(state, reason=reason, final=final, sick=sick)
        except Fenced as error:
            self._fenced(error)
        if sealed and go_on:
            self.seals.prepare_as_sealed()
        self._announce(self.phases.current)
        if sealed and final:
            self._final_step = step
        return sealed

    def stepped(self, step: int, total: int | None, loss: float | None) -> None:
        """Report a step: the first and the last always, those between as often as they may be sent."""
        fields: dict[str, object] = {Field.PHASE: self.phases.current, Field.STEP: step}
        if total is not None:
            fields[Field.TOTAL] = total
        if loss is not None:
            fields[Field.LOSS] = repr(loss)
        if self._told_first and step != total:
            self.notifier.send_often(fields)
        else:
            self._told_first = True
            self.notifier.send(fields, important=True)

    def sick(self, step: int) -> None:
        """Report the first step whose loss or state was not finite."""
        if self._told_sick:
            return
        self._told_sick = True
        self.notifier.send({Field.SICK: step}, important=True)
        say(f"the loss or the state of step {step} is not finite: a generation of it is marked unhealthy")

    def _sync(self) -> None:
        if self.metrics is not None:
            self.metrics.sync()

    def _fenced(self, error: Fenced) -> NoReturn:
        say(f"{error}; stopping without a save")
        self._end(ExitCode.SAVED)

    # --- the end ---

    def done(self, step: int) -> None:
        """The script left the training in order."""
        self.notifier.send({Field.EXIT: ExitWord.DONE, Field.STEP: step}, important=True)
        self.close()

    def close(self) -> None:
        """Give back what was taken: the script goes on without a supervisor's interest in it."""
        self.before_leaving()
        self.signals.uninstall()
        if self.metrics is not None:
            self.metrics.sync()
            self.metrics.close()

    def failed(self, error: BaseException, step: int) -> None:
        """Report the exception that ends the worker."""
        what = failure(error, step, self.phases.of(error))
        self.notifier.send({Field.FAILURE: _json(what)}, important=True)

    def left(self) -> None:
        """The script left the training by an exception: it may catch that, and try again with another Checkpointer."""
        self.before_leaving()
        if self.over is None:  # else signals are ignored, as they are at an end
            self.signals.uninstall()
        self._sole = False
        sole.leave(writing_folder(self.context.checkpoints, self.context.attempt))

    @contextlib.contextmanager
    def reporting(self, step: int) -> Iterator[None]:
        """Report what is raised inside, where no ``with`` statement of the script is there to see it."""
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            self.failed(error, step)
            raise

    def refuse(self, why: str) -> NoReturn:
        """End the worker with 65: going on would do harm."""
        self.notifier.send({Field.REFUSED: why}, important=True)
        say(f"refused: {why}")
        self.before_leaving()
        self.over = RestoreNotHonoured(int(ExitCode.UNUSABLE))
        raise self.over

    def _bad(self, error: IntegrityError) -> NoReturn:
        resume = self.context.resume
        name = resume.name if resume is not None else ""
        what = bad_report(error) | {"generation": name, "reason": str(error)[:1000]}
        self.notifier.send({Field.BAD: _json(what)}, important=True)
        say(f'cannot restore "{name}": {error}; the supervisor falls back to an older generation')
        raise SystemExit(int(ExitCode.UNUSABLE))

    def _leave(self, step: int, why: str, saved: bool) -> NoReturn:
        why = self.stop_reason() or why  # with the count as it is by now
        if not saved:
            say(f"stopping after {why} at step {step} WITHOUT a save, exit code {int(ExitCode.CANNOT_WRITE)}")
            self._end(ExitCode.CANNOT_WRITE)
        if step > self.restored_step or self._final_step == step:
            self.notifier.send({Field.EXIT: ExitWord.SAVED, Field.STEP: step}, important=True)
            say(f"stopping after {why}: step {step} is saved, exit code {int(ExitCode.SAVED)}")
        else:
            say(f"stopping after {why}: nothing to save yet, exit code {int(ExitCode.SAVED)}")
        self._end(ExitCode.SAVED)

    def _end(self, code: ExitCode) -> NoReturn:
        self.over = Leaving(int(code))
        self.signals.ignore()
        self.before_leaving()
        if self.metrics is not None:
            self.metrics.sync()
        raise self.over

    def _announce(self, phase: Phase) -> None:
        self.notifier.send({Field.PHASE: phase}, important=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_list(items: list[str]) -> str:
    """As many of the items as fit."""
    kept = list(items)
    while len(_json(kept).encode()) > _ROOM and len(kept) > 1:
        kept.pop()
    return _json([item[: _ROOM // 4] for item in kept] if len(kept) == 1 else kept)
