"""The named parts of a run: what can be one, how each is captured, and how all are restored or refused."""

from __future__ import annotations

import collections
import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from outlast_worker import optimizers
from outlast_worker.digest import OPTIMIZER, first_difference
from outlast_worker.typewalk import NotLoadable, kind_name

STATEFUL = "stateful"
MADE_AGAIN = (
    "what the training makes otherwise on its way (layers, groups, flags) is made so again before the restore: "
    "ckpt.step_count, ckpt.epoch and ckpt.extra can be read before “with ckpt:”"
)


class PartError(ValueError):
    """A part can't be saved or restored. Register what the checkpoint holds, or start from another one."""

    def __init__(self, part: str, why: str) -> None:
        self.part = part
        super().__init__(f"part {part!r}: {why}")


class Parts:
    """Named objects whose state belongs to the run. Those that are None are left out."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._values = {name: value for name, value in named.items() if value is not None}
        self._kinds = {name: _kind_of(name, value) for name, value in self._values.items()}

    def capture(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The tree and the kind of each part. The tensors are the live ones: save before the next update."""
        trees = {}
        for name in self._values:
            try:
                trees[name] = self._capture(name)
            except Exception as error:
                raise PartError(name, f"its state can't be read: {type(error).__name__}: {error}") from error
        return trees, dict(self._kinds)

    def restore(
        self,
        trees: Mapping[str, Any],
        kinds: Mapping[str, str],
        *,
        other_torch: bool = False,
        code: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[str]:
        """Bring every part to its saved state, which is handed over: tensors in it may become the parts' own.

        Optimizers come last: a scheduler, when made or loaded, may set the learning rate, and the saved one
        must win. Parts of PyTorch's own kinds and generators are then captured again and compared by bits.
        With ``other_torch`` another version of it has saved them, and those of optimizers and schedulers may have
        options that were not saved: what those are is returned in sentences. So are those of an optimizer whose class
        is the one in ``code``, of which this may be another version.
        """
        drift: list[str] = []
        self._refuse_mismatch(trees, kinds)
        for name in sorted(self._values, key=lambda name: self._kinds[name] == OPTIMIZER):
            try:
                self._restore(name, trees[name])
            except Exception as error:
                why = f"can't be restored: {type(error).__name__}: {error}"
                if isinstance(self._values[name], torch.nn.Module | torch.optim.Optimizer):
                    why = why.rstrip(" .") + "; " + MADE_AGAIN
                raise PartError(name, why) from error
        for name, value in self._values.items():
            if self._kinds[name] != STATEFUL or isinstance(value, _EXACT):
                now = self._capture(name)
                found = first_difference(trees[name], now)
                same = (
                    self._kinds[name] == OPTIMIZER and code.get(f"{name} class") == type(value).__qualname__
                )
                if found is not None and (same or (other_torch and isinstance(value, _WITH_OPTIONS))):
                    now, added = _without_added(trees[name], now)
                    if (found := first_difference(trees[name], now)) is None:
                        drift.append(
                            f"{name}: saved without {', '.join(sorted(added))}, which this version has"
                        )
                if found is not None:
                    raise PartError(
                        name,
                        f"is not what was saved after its restore: {found}; "
                        f"is this {type(value).__name__} of the class that was saved, and made as it was?",
                    )
        return drift

    def check(self) -> None:
        """Raise NotLoadable for what a module's own ``load_state_dict`` could never put back."""
        for part, whole in self._modules().items():
            if not _restores_as_torch(whole):
                continue  # it may know how, as with assign=True
            for path, module in whole.named_modules():
                if type(module)._load_from_state_dict is not torch.nn.Module._load_from_state_dict:
                    continue
                parameters, buffers = (
                    module.named_parameters(recurse=False),
                    module.named_buffers(recurse=False),
                )
                for name, value in (*parameters, *buffers):
                    if name not in module._non_persistent_buffers_set and _overlaps(value):
                        why = (
                            "its elements share memory (expand), and torch loads nothing into such; clone it"
                        )
                        raise NotLoadable(f"{part}/{path + '.' if path else ''}{name}", kind_name(value), why)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those among them that are torch's."""
        return [value for name, value in self._values.items() if self._kinds[name] == OPTIMIZER]

    def modules(self) -> list[torch.nn.Module]:
        """Those among them that are torch's."""
        return list(self._modules().values())

    def classes(self) -> dict[str, str]:
        """What the states of PyTorch's own kinds do not tell, as "optimizer class": its name, without its module."""
        kinds = (*_EXACT, *_WITH_OPTIONS)
        values = self._values.items()
        return {
            f"{name} class": type(value).__qualname__ for name, value in values if isinstance(value, kinds)
        }

    def has(self, kind: type) -> bool:
        """Whether one of them is of this kind."""
        return any(isinstance(value, kind) for value in self._values.values())

    def restored_by_torch(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        """Those whose state goes back by torch's own rules, into what is made as it was."""
        return {
            name: value
            for name, value in self._values.items()
            if self._kinds[name] == OPTIMIZER or _restores_as_torch(value)
        }

    def _capture(self, name: str) -> Any:
        value = self._values[name]
        if self._kinds[name] == OPTIMIZER:
            return optimizers.capture(value, self._modules())
        return _HANDLERS[self._kinds[name]].capture(value)

    def _restore(self, name: str, tree: Any) -> None:
        value = self._values[name]
        if self._kinds[name] == OPTIMIZER:
            optimizers.restore(value, tree, self._modules())
        else:
            _HANDLERS[self._kinds[name]].restore(value, tree)

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {name: value for name, value in self._values.items() if isinstance(value, torch.nn.Module)}

    def _refuse_mismatch(self, trees: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
        for name in trees:
            if name not in self._values:
                raise PartError(
                    name, "is in the checkpoint but not in the script; register it under that name"
                )
        for name, kind in self._kinds.items():
            if name not in trees:
                raise PartError(
                    name,
                    "is in the script but not in the checkpoint; leave it out, or start from one that has it",
                )
            if kinds.get(name) != kind:
                raise PartError(
                    name, f"is of kind {kind} in the script and {kinds.get(name)} in the checkpoint"
                )


def _kind_of(name: str, value: Any) -> str:
    if isinstance(value, torch.optim.Optimizer):
        return OPTIMIZER
    for kind, handler in _HANDLERS.items():
        if handler.accepts(value):
            return kind
    raise PartError(
        name,
        f"{kind_name(value)} has no state_dict and load_state_dict, and is no generator of numpy, random or "
        "torch; give it the two methods, or keep plain values in extra",
    )


class _Handler(NamedTuple):
    accepts: Callable[[Any], bool]
    capture: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]


def _is_stateful(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict")
    )


def _restores_as_torch(value: Any) -> bool:
    return (
        isinstance(value, torch.nn.Module) and type(value).load_state_dict is torch.nn.Module.load_state_dict
    )


def _restore_stateful(value: Any, tree: Any) -> None:
    tensors = value.state_dict().values() if isinstance(value, torch.nn.Module) else ()
    # what was made in inference mode can be changed there alone
    made_there = any(isinstance(tensor, torch.Tensor) and tensor.is_inference() for tensor in tensors)
    with torch.inference_mode() if made_there else contextlib.nullcontext():
        value.load_state_dict(_own_containers(tree))


def _overlaps(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _without_added(saved: Any, now: Any) -> tuple[Any, set[str]]:
    """A state without the entries that were not saved, and their names."""
    if type(saved) is dict and type(now) is dict:
        added = {key for key in now.keys() - saved.keys() if type(key) is str}
        kept = {key: item for key, item in now.items() if key not in added}
        for key in kept.keys() & saved.keys():
            kept[key], more = _without_added(saved[key], kept[key])
            added |= more
        return kept, added
    if type(saved) is list and type(now) is list and len(saved) == len(now):
        pairs = [_without_added(*pair) for pair in zip(saved, now, strict=True)]
        return [item for item, _ in pairs], set().union(*(more for _, more in pairs))
    return now, set()


def _own_containers(tree: Any) -> Any:
    """The same tensors in other containers: some schedulers take entries out of the dict which they load."""
    if type(tree) in (dict, collections.OrderedDict):
        result = copy.copy(tree)  # with the layer versions that a module's state dict has as an attribute
        result.update({key: _own_containers(item) for key, item in tree.items()})
        return result
    return [_own_containers(item) for item in tree] if type(tree) is list else tree


def _capture_numpy(generator: np.random.Generator) -> dict[str, Any]:
    # what spawn() hands out next hangs on the seed sequence, which is not in the bit generator's state
    seeds: Any = generator.bit_generator.seed_seq
    spawning = None
    if type(seeds) is np.random.SeedSequence:
        spawning = {
            "entropy": seeds.entropy,
            "spawn_key": seeds.spawn_key,
            "pool_size": seeds.pool_size,
            "n_children_spawned": seeds.n_children_spawned,
        }
    return {"bit_generator": generator.bit_generator.state, "seed_sequence": spawning}


def _restore_numpy(generator: np.random.Generator, tree: dict[str, Any]) -> None:
    bits: Any = generator.bit_generator
    state, spawning = tree["bit_generator"], tree["seed_sequence"]
    if spawning is None:
        bits.state = state
        return
    seeds = np.random.SeedSequence(**spawning)
    if type(bits.__reduce__()[2]) is tuple:  # the call by which pickle brings back both
        bits.__setstate__((state, seeds))
        return
    # numpy 1.26 pickles the state alone, and nothing but a new bit generator has another seed sequence
    np.random.Generator.__init__(generator, type(bits)(seeds))
    generator.bit_generator.state = state


def _restore_random(generator: random.Random, state: Any) -> None:
    version, words, gauss = state
    generator.setstate((version, tuple(words), gauss))


def _capture_torch(generator: torch.Generator) -> dict[str, Any]:
    return {"device": generator.device.type, "state": generator.get_state()}


def _restore_torch(generator: torch.Generator, tree: dict[str, Any]) -> None:
    if tree["device"] != generator.device.type:
        raise ValueError(f"it was a generator of {tree['device']} and is now one of {generator.device.type}")
    generator.set_state(tree["state"])


_HANDLERS: dict[str, _Handler] = {
    STATEFUL: _Handler(_is_stateful, lambda v: v.state_dict(), _restore_stateful),
    "numpy.Generator": _Handler(lambda v: isinstance(v, np.random.Generator), _capture_numpy, _restore_numpy),
    "numpy.RandomState": _Handler(
        lambda v: isinstance(v, np.random.RandomState),
        lambda v: v.get_state(legacy=False),
        lambda v, tree: v.set_state(tree),
    ),
    "random.Random": _Handler(
        lambda v: isinstance(v, random.Random) and not isinstance(v, random.SystemRandom),
        lambda v: v.getstate(),
        _restore_random,
    ),
    "torch.Generator": _Handler(lambda v: isinstance(v, torch.Generator), _capture_torch, _restore_torch),
}
_EXACT = (torch.nn.Module, torch.optim.lr_scheduler.LRScheduler)
_WITH_OPTIONS = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
