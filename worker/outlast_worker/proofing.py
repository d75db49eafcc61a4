"""A proof run's side of the worker: cuts at exact steps, parts left out, and a digest of everything."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from outlast_jobs.contract import Env
from outlast_worker.digest import OPTIMIZER, by_name, bytes_of, leaves
from outlast_worker.orbits import places
from outlast_worker.parts import Parts
from outlast_worker.snapshot import clone
from outlast_worker.strays import Stray, find
from outlast_worker.typewalk import NotLoadable, loadable

RECORD = "proof"
EXTRA = "extra"
"""The script's own values, among the parts that can be left out."""
_RNG = "rng/"


_taken = False


def taken_by_checkpointer() -> bool:
    """Whether a Checkpointer records this process, so that nothing else must."""
    return _taken


def take() -> None:
    """A Checkpointer records this process."""
    global _taken
    _taken = True


class UnknownPart(ValueError):
    """What is to be left out is no part of this job."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the environment asks of a proof run."""

    stop_at: int | None = None
    cuts: tuple[tuple[signal.Signals, int], ...] = ()
    leave_out: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Order | None:
        """The order, or None where this is no proof run."""
        if environ.get(Env.RECORD) != RECORD:
            return None
        stop_at = environ.get(Env.STOP_AT)
        cuts = [entry.partition("@") for entry in environ.get(Env.CUT, "").split(",") if entry]
        return cls(
            stop_at=int(stop_at) if stop_at else None,
            cuts=tuple((signal.Signals[name], int(step)) for name, _, step in cuts),
            leave_out=environ.get(Env.LEAVE_OUT, ""),
        )


@dataclass
class _Updates:
    """What the optimizers did since the last boundary, seen right before each update."""

    count: int = 0
    rates: list[float] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)


class Proof:
    """Records what a proof compares, and does to this worker what the proof wants done."""

    def __init__(
        self,
        order: Order,
        parts: Mapping[str, Any],
        extra: Mapping[str, Any],
        ours: Callable[[], list[Any]],
    ) -> None:
        self.order = order
        self.over = False
        """The step at which this proof run ends was reached and saved."""
        self.look_at(parts, extra)
        self._ours = ours
        self._batches = hashlib.blake2b(digest_size=8)
        self._drawn = 0
        self._updates = _Updates()
        self._write: Callable[[dict[str, Any]], None] | None = None
        self._head: dict[str, Any] = {}
        self._optimizers: dict[int, Any] = {}
        register_optimizer_step_pre_hook(torch.compiler.disable(self._before_update))

    def look_at(self, parts: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """These are the parts, and the script's own values."""
        self._parts = {name: value for name, value in parts.items() if value is not None}
        self._reader = Parts(self._parts)
        self._extra = extra

    # --- at the restore ---

    def leave_out_extra(self, state: dict[str, Any]) -> None:
        """Forget the script's own values, where they are what is to be left out."""
        if self.order.leave_out == EXTRA:
            state["extra"] = {}

    def leave_out(self, state: dict[str, Any], live: Mapping[str, Any]) -> None:
        """Put what a fresh start has in the place of the part that is to be left out."""
        part = self.order.leave_out
        if part in ("", EXTRA):
            return
        if part.startswith(_RNG):
            _leave_out_stream(state["rng"], part.removeprefix(_RNG), live["rng"])
        elif part in state["parts"]:
            state["parts"][part] = clone(live["parts"][part])
        else:
            raise UnknownPart(f"cannot leave out {part!r}: the checkpoint has no such part")

    # --- what is recorded ---

    def opened(self, write: Callable[[dict[str, Any]], None], head: dict[str, Any]) -> None:
        """The metrics are open: the state before the first step of this attempt is recorded from now on."""
        self._write, self._head = write, head

    def starts(self, step: int, rng: Mapping[str, Any]) -> None:
        """Record the state as the training finds it; the last such record counts."""
        if self._write is not None:
            self._write({"start": step, **self._head, "proof": self._record(rng)})
        self._updates = _Updates()

    def batch(self, batch: Any) -> Any:
        """Note what is handed to the script, and pass it on."""
        self._drawn += 1
        try:
            for leaf in leaves(loadable(batch, "batch")):
                self._batches.update(leaf.tag.encode())
                self._batches.update(_bytes_of(leaf.payload))
        except NotLoadable:
            pass  # strings and the like beside tensors are no reason to fail; ids or the loss tell
        return batch

    def boundary(self, rng: Mapping[str, Any]) -> dict[str, Any]:
        """What the line of a step says for the proof."""
        record = self._record(rng)
        if self._drawn:
            record["batch"] = self._batches.hexdigest()
        updates = self._updates
        record |= {"updates": updates.count, "rates": updates.rates, "gradients": updates.gradients}
        record["norm"] = sum(norm * norm for norm in updates.norms) ** 0.5
        self._batches = hashlib.blake2b(digest_size=8)
        self._drawn = 0
        self._updates = _Updates()
        return record

    # --- what is done to this worker ---

    def cut(self, step: int) -> None:
        """Send this process the signals that are due at this boundary; SIGKILL does not come back."""
        for number, at in self.order.cuts:
            if at == step:
                signal.raise_signal(number)

    def ends_at(self, step: int) -> bool:
        """Whether this is the last step of this run."""
        return self.order.stop_at is not None and step >= self.order.stop_at

    # --- inside ---

    def _record(self, rng: Mapping[str, Any]) -> dict[str, Any]:
        trees, kinds = self._reader.capture()
        parts: dict[str, str] = {}
        tensors: dict[str, str] = {}
        for name, tree in trees.items():
            if isinstance(self._parts[name], torch.nn.Module):
                named = {f"{name}.{key}": _digest(item) for key, item in tree.items()}
                tensors |= named
                parts[name] = _digest(named)
            else:
                parts[name] = _digest(by_name(tree) if kinds[name] == OPTIMIZER else tree)
        parts[EXTRA] = _digest(loadable(dict(self._extra), EXTRA))
        strays = self._strays()
        return {
            "extra": bool(self._extra),
            "parts": parts,
            "kinds": kinds,
            "tensors": tensors,
            "places": places(rng),
            "lr": [
                float(group["lr"])
                for part in self._parts.values()
                if isinstance(part, torch.optim.Optimizer)
                for group in part.param_groups
            ],
            "strays": {stray.shown: digest for stray in strays if (digest := _stray_digest(stray))},
            "stray_kinds": {stray.shown: stray.kind for stray in strays},
        }

    def _strays(self) -> list[Stray]:
        found = find(self._parts, self._ours())
        known = {id(stray.value) for stray in found} | {id(value) for value in self._parts.values()}
        unseen = [value for key, value in self._optimizers.items() if key not in known]
        return found + [Stray("an optimizer", "optimizer", value) for value in unseen]

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        updates = self._updates
        updates.count += 1
        names = self._names()
        number = 0
        for group in optimizer.param_groups:
            updates.rates.append(float(group["lr"]))
            for parameter in group["params"]:
                name = names.get(id(parameter), f"{type(optimizer).__name__}.{number}")
                number += 1
                if parameter.grad is not None:
                    gradient = parameter.grad.detach()
                    if gradient.is_sparse:
                        sparse = gradient.coalesce()
                        gradient = sparse.values()
                        updates.gradients[name] = _digest([sparse.indices(), gradient])
                    else:
                        updates.gradients[name] = _digest(gradient)
                    updates.norms.append(float(gradient.double().norm()))

    def _names(self) -> dict[int, str]:
        return {
            id(parameter): f"{part}.{name}"
            for part, module in self._parts.items()
            if isinstance(module, torch.nn.Module)
            for name, parameter in module.named_parameters()
        }


def _leave_out_stream(rng: dict[str, Any], stream: str, live: Mapping[str, Any]) -> None:
    if stream.startswith("cuda:"):
        index = int(stream.partition(":")[2])
        rng["cuda"][index] = live["cuda"][index]
    elif stream in rng:
        rng[stream] = live[stream]
    else:
        raise UnknownPart(f"cannot leave out the random stream {stream!r}: there is none")


def _stray_digest(stray: Stray) -> str | None:
    """A digest of what is not registered; None where it has no state that can be read."""
    value = stray.value
    try:
        tree: Any = value
        if stray.kind in ("numpy.Generator", "numpy.RandomState", "random.Random", "torch.Generator"):
            tree = Parts({"stray": value}).capture()[0]
        elif stray.kind != "tensors":
            tree = value.state_dict()
        return _digest(loadable(tree, stray.name))
    except Exception:  # it is not ours: whatever its state_dict raises, it is no reason to fail
        return None


def _digest(tree: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in leaves(tree):
        for piece in (*leaf.path, leaf.tag.encode(), _bytes_of(leaf.payload)):
            digest.update(len(piece).to_bytes(8, "little"))  # of a tensor: of its bytes
            digest.update(piece)
    return digest.hexdigest()


def _bytes_of(payload: Any) -> Any:
    if isinstance(payload, bytes):
        return payload
    return bytes_of(payload)
