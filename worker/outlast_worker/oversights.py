"""What a training does that a resume could not go on from: seen at boundaries and saves, and told once."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from outlast_worker.output import say
from outlast_worker.parts import MADE_AGAIN, Parts
from outlast_worker.shards import Place, place

_LOOKED_AT = 32  # parameters at each boundary


class Oversights:
    """Tells of gradients that lie open at a boundary, what is not saved, and parts made otherwise."""

    def __init__(self, parts: Parts, trees: Mapping[str, Any]) -> None:
        self._parts = parts
        self._known = parts.optimizers()
        self._made = {name: _Made(part) for name, part in parts.restored_by_torch().items()}
        for name, made in self._made.items():
            made.changed(trees[name])
        self._told_empty: set[str] = set()
        self._strangers: weakref.WeakSet[torch.optim.Optimizer] | None = weakref.WeakSet()
        self._stepped = self._known_stepped = False  # since the last boundary, and the last save
        # a GradScaler skips updates, and an optimizer without hooks does not tell of any
        hooked = all(getattr(type(optimizer).step, "hooked", False) for optimizer in self._known)
        self._gathering = hooked and bool(self._known) and not parts.has(torch.amp.GradScaler)
        self._seen = _mark(self._gradient())
        # a boundary with gradients and without a step, and their mark
        self._open: tuple[int, tuple[int, int]] | None = None
        self._hook = register_optimizer_step_pre_hook(torch.compiler.disable(self._before_step))

    def at_boundary(self, step: int) -> None:
        """A boundary where no optimizer has stepped is none, if something went backward since the one before."""
        stepped, self._stepped = self._stepped, False
        if not self._gathering:
            return
        gradient = self._gradient()
        before, self._seen = self._seen, _mark(gradient)
        if stepped or gradient is None or self._seen == before or self._open is not None:
            return
        if gradient.is_sparse or bool(gradient.any()):
            self._open = step, self._seen

    def _gathered(self) -> None:
        """An optimizer steps next: by what lay open at a boundary, or by new gradients where that was thrown away."""
        if self._open is None:
            return
        (step, (before, version)), self._open = self._open, None
        now, later = _mark(self._gradient())
        if now == before and later > version:
            self._gathering = False
            say(
                f"gradients were gathered before the boundary of step {step} and no optimizer stepped: a resume from "
                "there begins without them; call ckpt.step() only after optimizer.step(), or draw with "
                "ckpt.steps(…, accumulate=…); a GradScaler, which skips updates, is passed as a part"
            )

    def at_save(self, step: int, trees: Mapping[str, Any]) -> None:
        """What is not in these trees of the parts, or goes back into no script that begins as this one began."""
        for part, made in self._made.items():
            if other := made.changed(trees[part]):
                say(
                    f"{part} has other {' and '.join(other)} at step {step} than at the save before, and a restart "
                    f"begins with those of the script: {MADE_AGAIN}"
                )
        for part, module in self._parts.restored_by_torch().items():
            if not trees[part] and part not in self._told_empty and _holds_tensors(module):
                self._told_empty.add(part)
                say(
                    f"nothing of {part} is saved: it holds tensors, and its state_dict is empty "
                    "(one of torchmetrics saves them after its persistent(True))"
                )
        known, self._known_stepped = self._known_stepped, False
        if self._strangers and (stranger := self._lost(self._strangers, trees, known)) is not None:
            self._strangers = None
            say(
                f"an optimizer ({type(stranger).__name__}) steps that was not passed to the Checkpointer, and its "
                "state is in nothing that is saved: pass it by a keyword of its own; to begin anew with the one that "
                "was passed, clear its state and its param_groups, and add a group to it"
            )

    def close(self) -> None:
        """Look no longer."""
        self._hook.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped = True
        if any(optimizer is known for known in self._known):
            self._known_stepped = True
            self._gathered()
        elif self._strangers is not None:
            self._strangers.add(optimizer)

    def _gradient(self) -> torch.Tensor | None:
        """The first that there is among some parameters: to look at all of them would cost each step its time."""
        groups = (group for optimizer in self._known for group in optimizer.param_groups)
        some = itertools.islice((p for group in groups for p in group["params"]), _LOOKED_AT)
        return next((p.grad for p in some if p.grad is not None), None)

    def _lost(
        self, strangers: Iterable[torch.optim.Optimizer], trees: Mapping[str, Any], known: bool
    ) -> torch.optim.Optimizer | None:
        """One that trains what is saved, or alone, and whose state no part gives."""
        ours = {id(parameter) for module in self._parts.modules() for parameter in module.parameters()}
        saved: set[Place] = {place(tensor) for tensor in _tensors(trees)}
        for stranger in strangers:
            own = [place(tensor) for entry in stranger.state.values() for tensor in _tensors(entry)]
            trained = (id(parameter) for group in stranger.param_groups for parameter in group["params"])
            if own and saved.isdisjoint(own) and not (known and ours.isdisjoint(trained)):
                return stranger
        return None


class _Made:
    """How a module or an optimizer is made, so far as a restore has to find that again."""

    def __init__(self, part: torch.nn.Module | torch.optim.Optimizer) -> None:
        self._part = part
        self._before: dict[str, Any] = {}
        self._parameters: list[weakref.ref[torch.nn.Parameter]] = []
        self._modules: list[weakref.ref[torch.nn.Module]] = []

    def changed(self, tree: Mapping[str, Any]) -> list[str]:
        """What differs from the call before; ``tree`` is the part's state."""
        found: dict[str, Any] = {}
        if isinstance(self._part, torch.optim.Optimizer):
            found["parameter groups"] = [len(group["params"]) for group in self._part.param_groups]
        else:
            tensors = ((key, item) for key, item in tree.items() if isinstance(item, torch.Tensor))
            found["tensors"] = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors}
            if found["tensors"] != self._before.get("tensors") or not self._all_live():
                self._walk(self._part)
            found["frozen parameters"] = [
                p.requires_grad for ref in self._parameters if (p := ref()) is not None
            ]
            if self._part.training:  # one that is in eval mode as a whole does not show it
                found["modules in eval mode"] = [
                    m.training for ref in self._modules if (m := ref()) is not None
                ]
        before, self._before = self._before, self._before | found
        return [what for what, item in found.items() if before.get(what, item) != item]

    def _all_live(self) -> bool:
        return all(p() is not None for p in self._parameters) and all(m() is not None for m in self._modules)

    def _walk(self, module: torch.nn.Module) -> None:
        """Look for its flags anew: to do so takes as long as its state dict, so only where it was made otherwise."""
        self._parameters = [weakref.ref(parameter) for parameter in module.parameters()]
        self._modules = [weakref.ref(inner) for inner in module.modules()]
        self._before = {what: item for what, item in self._before.items() if what == "tensors"}


def _mark(gradient: torch.Tensor | None) -> tuple[int, int]:
    """Another one when something was added to it, or it is a new one."""
    return (id(gradient), gradient._version) if gradient is not None else (0, 0)


def _holds_tensors(module: torch.nn.Module | torch.optim.Optimizer) -> bool:
    """Whether it has some as plain attributes, which a module's state does not tell of."""
    inner = module.modules() if isinstance(module, torch.nn.Module) else ()
    plain = [item for one in inner for name, item in vars(one).items() if not name.startswith("_")]
    return any(True for _ in _tensors(plain))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Those that have a place in memory."""
    if type(tree) in (torch.Tensor, torch.nn.Parameter):
        if tree.layout is torch.strided:
            yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(item)
