"""What to do at a boundary, and in a poll: pure functions from facts to a decision and its reason."""

from __future__ import annotations

from msgspec import Struct, structs


class Facts(Struct, frozen=True):
    """What is known at a boundary."""

    step: int
    restored_step: int
    sealed_step: int | None = None
    """Newest step that this attempt sealed."""
    finished: bool = False
    """The last step that was asked for is done."""
    finalised: bool = False
    """The run's last generation is sealed."""
    stop: str | None = None
    """Why the worker must stop: a signal, or that nobody supervises any more."""
    asked: bool = False
    due: str | None = None
    """Why the cadence wants a save."""

    @property
    def trained(self) -> bool:
        """Whether a step was trained since the restore."""
        return self.step > self.restored_step

    @property
    def sealed(self) -> bool:
        """Whether the state of this very step is already safe."""
        return self.finalised or self.sealed_step == self.step


class Decision(Struct, frozen=True):
    """What to do, and why."""

    seal: str | None = None
    """The reason to seal a generation now; None for no save."""
    final: bool = False
    leave: str | None = None
    """The reason to exit with 75 now (after the save); None to train on."""


GO_ON = Decision()
NOTHING_YET = "nothing to save yet"


def at_boundary(facts: Facts) -> Decision:
    """What to do after a whole update. One save answers the end, a stop, a request and the cadence."""
    if facts.finished and not facts.finalised:
        # A stop that came with the last step is not acted on here: what follows the training is short.
        return Decision(seal="the last step", final=True)
    if facts.stop is not None:
        if facts.sealed:
            return Decision(leave=facts.stop)
        if not facts.trained:
            return Decision(leave=f"{facts.stop}, {NOTHING_YET}")
        return Decision(seal=facts.stop, leave=facts.stop)
    if facts.sealed or not facts.trained:
        return GO_ON
    if facts.asked:
        return Decision(seal="asked for")
    return Decision(seal=facts.due) if facts.due is not None else GO_ON


def in_poll(facts: Facts, has_snapshot: bool) -> Decision:
    """What to do between boundaries, where only a snapshot of the last boundary may be saved.

    Without one the boundary has to be waited for: the state in memory may belong to half a step.
    """
    decision = at_boundary(structs.replace(facts, finished=False))
    return decision if decision.seal is None or has_snapshot else GO_ON
