"""Which tensors may be copied while the training goes on, and what is learnt of whether they keep still.

Only what nothing but an optimizer's step is known to change: its parameters and its state, where it tells before it
steps; and the parameters that are not trained, which nothing is known to change. All else is copied at the boundary.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch

from outlast_worker.shards import Component, Place, place

REHEARSALS = 3
"""So many saves of an attempt are copied at the boundary and compared before the next update."""
CHECK_EVERY = 50
"""And one in so many after them."""
CHANGES = 2
"""After so many saves under which weights were changed, all are copied at the boundary."""


class Mode(enum.StrEnum):
    """How a state is copied."""

    AT_ONCE = "at once"
    REHEARSED = "rehearsed"  # at once, and compared before the next update
    MEANWHILE = "meanwhile"  # while the training goes on


class Trust:
    """Whether weights keep still between a boundary and the next update, by what was seen of it so far."""

    def __init__(self) -> None:
        self.ended = ""
        """Why nothing is copied meanwhile any longer."""
        self._saves = 0
        self._changes = 0
        self._once_more = False

    def next(self) -> Mode:
        """How the next save is copied."""
        if self.ended:
            return Mode.AT_ONCE
        if self._once_more:
            self._once_more = False
            return Mode.AT_ONCE
        self._saves += 1
        checked = self._saves <= REHEARSALS or self._saves % CHECK_EVERY == 0
        return Mode.REHEARSED if checked else Mode.MEANWHILE

    def changed(self) -> bool:
        """The version of a tensor moved. Whether that is the first time."""
        self._changes += 1
        self._once_more = True
        if self._changes >= CHANGES and not self.ended:
            self.ended = "weights are changed between a boundary and the next update, again and again"
        return self._changes == 1

    def differed(self) -> None:
        """Bytes changed and no version moved."""
        self.ended = "weights are changed where torch does not see it (through .data, numpy or other memory)"


class Sources:
    """The optimizers that tell before they step, what they own, and the parameters that are not trained."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        modules: Sequence[torch.nn.Module],
        before_step: Callable[[], None],
    ) -> None:
        self._optimizers = [o for o in optimizers if _hook(o, before_step)]
        self._last: set[Place] = set()  # places whose tensors were looked at in the save before
        # To walk the modules takes some microseconds a parameter. Those that are put into them later are not known.
        self._parameters = [weakref.ref(p) for module in modules for p in module.parameters()]
        self._still = True  # parameters that are not trained were not seen to change

    def frozen(self) -> dict[Place, torch.Tensor]:
        """The parameters that are not trained, by their place in memory."""
        found = [p for known in self._parameters if (p := known()) is not None and not p.requires_grad]
        return {place(p): p for p in found if type(p) is torch.nn.Parameter}

    def movable(self) -> dict[Place, torch.Tensor]:
        """The tensors that only those optimizers change, or nobody, by their place in memory."""
        found = {}
        for tensor in (*self._owned(), *(self.frozen().values() if self._still else ())):
            where = place(tensor)
            if where in self._last or _plain(tensor):
                found[where] = tensor
        self._last = set(found)
        return found

    def frozen_change(self, changed: Sequence[torch.Tensor]) -> bool:
        """Whether nothing but parameters that are not trained was changed: they count as movable no longer then."""
        frozen = self.frozen().keys() if self._still and changed else ()
        owned = {place(tensor) for tensor in self._owned()} if frozen else set()
        if not frozen or any((at := place(tensor)) not in frozen or at in owned for tensor in changed):
            return False
        self._still = False
        return True

    def _owned(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for entries in optimizer.state.values():
                if isinstance(entries, dict):
                    yield from (value for value in entries.values() if isinstance(value, torch.Tensor))


def watched_by(component: Component, movable: dict[Place, torch.Tensor]) -> list[torch.Tensor] | None:
    """The tensors to watch while this is copied; None where it has to be copied at once."""
    if component.copied or (component.memory() is None and component.place() is None):
        return None
    storage = component.storage().nbytes
    found = []
    for member, where in zip(component.members, component.places(), strict=True):
        tensor = member.tensor
        if tensor.numel() == 0 or tensor.untyped_storage().nbytes() != storage:
            return None  # part of a larger memory, of which something else may be in use
        owner = movable.get(where)
        if owner is None:
            return None
        found += [owner] if owner is tensor else [owner, tensor]
    return found


def _plain(tensor: torch.Tensor) -> bool:
    kinds = (torch.Tensor, torch.nn.Parameter)
    if type(tensor) not in kinds or tensor.layout is not torch.strided or tensor.is_inference():
        return False  # what was made in inference mode has no version
    if tensor.device.type != "cpu":
        return tensor.device.type == "cuda"
    return not tensor.is_shared()  # with other processes, which may write at any time


def _hook(optimizer: torch.optim.Optimizer, before_step: Callable[[], None]) -> bool:
    register = getattr(optimizer, "register_step_pre_hook", None)
    if register is None or type(optimizer).step is torch.optim.Optimizer.step:
        return False
    # Only a step that torch has wrapped calls the hooks.
    if not getattr(type(optimizer).step, "hooked", False):
        return False
    try:
        # Compiled with the step, it would be traced and told what stood there at the trace.
        register(torch.compiler.disable(lambda *_: before_step()))
    except AttributeError:  # a subclass that skipped the initialisation has no place for hooks
        return False
    return True
