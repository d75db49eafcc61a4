"""The façade that a training script uses: steps, the boundary, phases; with or without a supervisor."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outlast_jobs.contract import Env, ExitCode, Phase
from outlast_worker import forked
from outlast_worker.batches import as_batches
from outlast_worker.context import RunContext
from outlast_worker.feed import Feed
from outlast_worker.leaving import OWN_EXITS
from outlast_worker.ledger import Ledger, Record
from outlast_worker.losses import loss_reading, reading
from outlast_worker.metrics import RESERVED, ids_digest
from outlast_worker.output import say
from outlast_worker.parts import Parts
from outlast_worker.phases import phase_named
from outlast_worker.rng import capture_rng_state, restore_rng_state, rng_digests
from outlast_worker.state import TrainingState

if TYPE_CHECKING:
    from outlast_worker.proofing import Proof
    from outlast_worker.session import Session


class Checkpointer:
    """Carries a training run through kills: restores it, saves it when due or asked, and stops it when told.

    Used as a context manager around the training loop. Any further keyword is a part of the state: what has
    ``state_dict`` and ``load_state_dict``, a numpy ``Generator``, a ``random.Random``, a ``torch.Generator``.
    ``extra`` holds the script's own plain values and can be read before training starts.
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        data: Any = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        digest_every: int = 1,
        **parts: Any,
    ) -> None:
        data = None if data is None else as_batches(data)
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data, **parts}
        self._feed = Feed(data)
        self._state = TrainingState(Parts({k: v for k, v in named.items() if v is not None}), self._feed)
        self._ledger = Ledger(self._state.losses)
        self._groups = [part for part in named.values() if hasattr(part, "param_groups")]
        self._digest_every = digest_every
        self._total: int | None = None
        self._boundary_copy: dict[str, Any] | None = None
        self._entered = False
        context = RunContext.from_env()
        self._session: Session | None = None
        self._forked = False
        self._proof: Proof | None = None
        if context is not None:
            # With all that saving takes: from here on nothing is imported, be the file system gone or the time short.
            from outlast_worker.session import Session

            self._session = Session(context, every_steps, every_seconds)
            self._proof = self._proof_asked({**named, "data": data})
            self._read_generation(self._session)
            if model is not None and not self._groups:
                say(
                    "a model is registered and no optimizer: momenta and step counts would start from "
                    "nothing after each restart; pass it as optimizer=…"
                )

    # --- what a script may read ---

    @property
    def step_count(self) -> int:
        """Optimizer steps done so far, those before the restore included."""
        return self._state.step

    @property
    def epoch(self) -> int:
        """The epoch, from 0, at the last boundary."""
        return self._feed.epoch

    @property
    def batch_in_epoch(self) -> int:
        """Batches of that epoch consumed at the last boundary."""
        return self._feed.batch_in_epoch

    @property
    def extra(self) -> dict[str, Any]:
        """The script's own plain values, saved and restored with the rest."""
        return self._state.extra

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The newest losses with their steps, those before the restore included."""
        return [(step, loss) for step, loss in self._state.losses.plain()]

    @property
    def supervised(self) -> bool:
        """Whether a supervisor watches over this process."""
        return self._session is not None

    # --- the training ---

    def __enter__(self) -> Self:
        self._entered = True
        if self._session is not None:
            self._session.be_sole()
            with self._session.reporting(self.step_count):
                self._attach(self._session)
        self._act()
        return self

    def steps(self, total: int, accumulate: int = 1) -> Iterator[Any]:
        """Batches until ``total`` steps are done, across epochs; lists of batches with ``accumulate`` over 1.

        Call `step` after each whole update. Without ``accumulate``, several batches may go into one update.
        """
        if accumulate < 1:
            raise ValueError(f"cannot accumulate over {accumulate} batches: give 1 or more")
        self._need_entered("steps")
        self._total = total
        if self.step_count < total:
            self._feed.start()
        # Right before the first batch is drawn: making the model, or the iterator, drew from the streams.
        self._state.restore_rng(allow_loss=self._rng_loss_allowed())
        if self._proof is not None:
            self._proof.starts(self.step_count, capture_rng_state())
        self._act()
        while self.step_count < total:
            if self._session is not None and self._session.over is not None:
                raise self._session.over  # the script has caught it; what follows its loop is for a whole training
            drawn = self._feed.hand_out(accumulate)
            yield drawn if self._proof is None else self._proof.batch(drawn)

    def step(self, loss: Any = None, *, step: int | None = None, **fields: Any) -> None:
        """The boundary after a whole update and its scheduler step: report, save if due, stop if told.

        ``step`` is the script's own count of the updates done, this one included, checked where it is given.
        Further fields are numbers for the metrics. Raises SystemExit(75) when the run must stop; the state is
        saved then.
        """
        self._need_entered("step")
        state = self._state
        state.step += 1
        if step is not None and step != state.step:
            self._not_honoured(step)
        self._boundary_copy = None
        ids = self._feed.at_boundary()
        state.trained()
        if taken := RESERVED & fields.keys():
            raise ValueError(
                f'cannot record "{min(taken)}": that key of a metrics line is taken; rename the field'
            )
        read = {name: reading(name, value) for name, value in fields.items()}
        record = Record(state.step, loss_reading(loss), read)
        if self._session is not None:
            record.rates = [
                reading("lr", group["lr"]) for part in self._groups for group in part.param_groups
            ]
            record.rest = self._line(ids)
        self._ledger.add(record)
        if self._session is not None:
            self._session.stepped(state.step, self._total, self._ledger.last_loss)
        if self._proof is not None:
            self._ledger.flush()  # a cut may be a SIGKILL
            self._proof.cut(state.step)
        self._act()
        self._leave_proof()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Tell what happens inside: ``eval``, ``compile``, …; each has its own limit for being called a hang.

        The process-wide random streams are set back at the end of ``eval``, so that evaluating, or being
        stopped in the middle of it, changes nothing in the training that follows.
        """
        phase = phase_named(name)
        session = self._session
        outermost = session is None or not session.phases.inside(Phase.EVAL)
        kept = capture_rng_state() if phase is Phase.EVAL and outermost else None
        if session is not None:
            if kept is not None:
                self._keep_boundary(session, kept)
            session.phases.enter(phase)
        try:
            yield
        except BaseException as error:
            if session is not None:
                session.phases.leave_by(error)
            raise
        else:
            if session is not None:
                session.phases.leave()
        finally:
            if kept is not None:
                self._boundary_copy = None
                restore_rng_state(kept)

    def poll(self) -> None:
        """Answer a signal inside a long evaluation: the last boundary is saved, and the run stopped if told.

        Within ``phase("eval")`` only; elsewhere the next boundary answers.
        """
        session = self._session
        if session is None:
            return
        from outlast_worker.boundary import in_poll

        copy = self._boundary_copy
        decision = session.settled(
            lambda: in_poll(session.facts(self.step_count, finished=False), copy is not None)
        )
        session.carry_out(decision, self.step_count, lambda: copy or {}, self._sick(), live=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        over = error if session is None or error is not None else session.over
        if session is None:
            self._feed.close()
        elif over is None:
            with session.reporting(self.step_count):
                self._finish(session)
        else:
            self._broken(session, over)
            if error is None:  # the script has caught it, and left as if it were done
                raise over

    # --- inside ---

    def _proof_asked(self, parts: dict[str, Any]) -> Proof | None:
        """The proof run that this is one of."""
        if not os.environ.get(Env.RECORD):
            return None
        from outlast_worker.proofing import Order, Proof, take

        order = Order.from_env()
        if order is None:
            return None
        take()
        return Proof(order, parts, self.extra, lambda: [self])

    def _read_generation(self, session: Session) -> None:
        with session.reporting(0):
            if (loaded := session.load()) is not None:
                if self._proof is not None:
                    self._proof.leave_out_extra(loaded.state)
                self._state.restore_extra(loaded.state)

    def _attach(self, session: Session) -> None:
        from outlast_worker.fingerprint import code_identity, fingerprint, other_torch
        from outlast_worker.saving import check_state
        from outlast_worker.sealing import Descriptions

        session.attach()
        session.before_leaving = self._state.close
        drift: list[str] = []
        if session.loaded is not None:
            if self._proof is not None:
                self._proof.leave_out(session.loaded.state, self._state.capture())
            saved = session.loaded.index
            other = other_torch(saved.fingerprint)
            drift = self._state.restore_parts(session.loaded.state, other_torch=other, code=saved.code)
            drift += self._feed.drift() + self._state.restore_rng(allow_loss=self._rng_loss_allowed())
        # What would be saved and never loaded again is said now, not at the first save or the next start.
        check_state(begun := self._state.capture())
        self._state.parts.check()
        self._state.watch(begun["parts"])
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        what = Descriptions(
            fingerprint=fingerprint(),
            code={**code_identity(script), **self._state.parts.classes()},
            config={"sha256": session.context.config_sha256} if session.context.config_sha256 else {},
            data=self._feed.identity(),
        )
        parts = self._state.parts
        session.seals.meanwhile.watch(parts.optimizers(), parts.modules())
        session.ready(what, drift)
        if session.metrics is not None:
            self._ledger.write = session.metrics.line
            if self._proof is not None:
                head = {"fingerprint": what.fingerprint, "code": what.code}
                self._proof.opened(session.metrics.line, head)
                self._proof.starts(self.step_count, capture_rng_state())
        self._ledger.on_sick = session.sick
        forked.in_children(self._left_to_parent, session)

    def _act(self) -> None:
        """What this boundary asks for, under a supervisor."""
        if self._session is not None:
            from outlast_worker.boundary import GO_ON, at_boundary

            finished = self._total is not None and self.step_count >= self._total
            finished = finished or (self._proof is not None and self._proof.ends_at(self.step_count))
            session, step = self._session, self.step_count
            decision = session.settled(lambda: at_boundary(session.facts(step, finished=finished)))
            if decision != GO_ON:
                self._ledger.flush()  # the loss history of a generation reaches to its step
            self._session.carry_out(decision, self.step_count, self._state.capture, self._sick())

    def _sick(self) -> bool:
        return not self._state.losses.last_finite

    def _line(self, ids: list[int]) -> dict[str, Any]:
        """What a metrics line says beside loss and fields."""
        line: dict[str, Any] = {"t": time.time(), "epoch": self.epoch, "batch": self.batch_in_epoch}
        if self._digest_every > 0 and self.step_count % self._digest_every == 0:
            line["rng"] = rng_digests()
        if self._proof is not None:
            line["proof"] = self._proof.boundary(capture_rng_state())
        if ids and self._session is not None:
            line["ids"] = ids if self._session.context.record_ids else ids_digest(ids)
        return line

    def _keep_boundary(self, session: Session, rng: dict[str, Any]) -> None:
        """Copy the boundary's state before an evaluation, which may swap weights; never within a step."""
        from outlast_worker.snapshot import clone  # it came with the session

        session.seals.meanwhile.close()
        facts = session.facts(self.step_count, finished=False)
        in_flight = session.seals.meanwhile.step == self.step_count
        if facts.trained and not facts.sealed and not in_flight and not self._feed.drawn:
            self._ledger.flush()
            self._boundary_copy = clone(self._state.capture(rng))

    def _finish(self, session: Session) -> None:
        """The script left the training in order: the run's last generation, and the word that it is done."""
        self._ledger.flush()
        session.land()
        step = self.step_count
        if not session.facts(step, finished=True).finalised:
            sealed = session.seal(
                step, self._state.capture, reason="the end of training", final=True, sick=self._sick()
            )
            if not sealed:
                say(f"the last generation could not be saved, exit code {int(ExitCode.CANNOT_WRITE)}")
                raise SystemExit(int(ExitCode.CANNOT_WRITE))
        session.done(step)

    def _leave_proof(self) -> None:
        """A proof run that reached its last step, which is sealed, ends here and not at the script's end."""
        if self._session is not None and self._proof is not None and self._proof.ends_at(self.step_count):
            self._proof.over = True
            self._session.done(self.step_count)
            raise SystemExit(0)

    def _broken(self, session: Session, error: BaseException) -> None:
        if self._proof is not None and self._proof.over:
            return
        with contextlib.suppress(Exception):  # a device that failed has no losses to give
            self._ledger.flush()
        if isinstance(error, SystemExit) and error.code in OWN_EXITS:
            if error.code in (None, 0):
                step = self.step_count
                say(
                    f"the script exited in the middle, at step {step}: the run is not done; to end it, use break"
                )
        else:
            session.failed(error, self.step_count)
        with contextlib.suppress(Exception):  # what is in flight is of a whole boundary, and still counts
            session.seals.settle(wait=True)
        session.left()

    def _not_honoured(self, claimed: int) -> None:
        begun = self._session is not None and self._session.restored_step > 0
        why = (
            f"{'restore not honoured: ' if begun else ''}the script calls this step {claimed}, and it is step "
            f"{self.step_count}; count on from ckpt.step_count, this update included"
        )
        if self._session is not None:
            self._session.refuse(why)
        from outlast_worker.session import RestoreNotHonoured

        raise RestoreNotHonoured(why)

    def _rng_loss_allowed(self) -> bool:
        return self._session is not None and self._session.context.allow_rng_loss

    def _left_to_parent(self) -> None:
        """In a forked child: it has the trainer's files open, and what it does is no part of the run."""
        self._ledger.write, self._session, self._forked = None, None, True

    def _need_entered(self, what: str) -> None:
        if self._forked:
            raise RuntimeError(forked.WHY.format(what=what, pid=os.getpid()))
        if not self._entered:
            raise RuntimeError(
                f"cannot call {what}() outside the Checkpointer: write “with ckpt:” around the training"
            )
