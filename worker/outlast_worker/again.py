"""Take a state out of the training as the one before it was taken, where it is made alike and lies as that did.

To look at each tensor, group those that share memory and lay out the files takes a hundredth of a second even for a
small model. From one save to the next nothing of that changes but numbers and texts. So the state is walked along
the one before, and what was found out is used again; at the first difference all is done anew.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import torch

from outlast_worker.imaging import Plan, plan
from outlast_worker.layout import Layout
from outlast_worker.saving import INLINE, take_state
from outlast_worker.shards import PARTS, Component, Held, Place, Taken
from outlast_worker.typewalk import TAG, Conversion, join


class _Differs(Exception):
    """The state is not made as the one before, or not so that it can be compared."""


class _Leaf(msgspec.Struct, frozen=True):
    """A tensor that was taken out: its place in memory, and its reference."""

    kind: Any  # a type
    facts: tuple[Any, ...]
    reference: dict[str, Any]


class _Box(msgspec.Struct, frozen=True):
    """A container with tensors somewhere below it. Of a list or tuple the keys are its length alone."""

    kind: Any  # a type
    keys: tuple[Any, ...]
    entries: tuple[_Leaf | _Box | _Plain, ...]
    attributes: dict[str, _Leaf | _Box | _Plain]


class _Plain(msgspec.Struct, frozen=True):
    """What holds no tensor that was taken out: converted each time."""

    path: str
    depth: int
    inline: bool = False


class _Mould(msgspec.Struct, frozen=True):
    """A plan without its tensors, which must not be kept alive by it."""

    made: _Box
    shards: tuple[tuple[tuple[Component, dict[str, Any]], ...], ...]
    layouts: tuple[Layout, ...]
    starts: tuple[int, ...]


class Again:
    """Plans the saves of one attempt."""

    def __init__(self) -> None:
        self._mould: _Mould | None = None
        self._apart: Collection[Place] | None = None

    def plan(self, state: Mapping[str, Any], apart: Collection[Place] | None = None) -> Plan:
        """As `plan(take_state(state, apart=apart))`, and what that raises: NotLoadable, NoLayout."""
        if self._mould is not None and apart == self._apart:
            try:
                return _cast(state, self._mould)
            except _Differs:
                self._mould = None
        self._apart = apart
        taken = take_state(state, apart=apart)
        planned = plan(taken)
        try:
            self._mould = _mould(state, planned)
        except _Differs:
            pass
        return planned


def _mould(state: Mapping[str, Any], planned: Plan) -> _Mould:
    skeleton = planned.taken.skeleton
    if type(state) is not dict or type(skeleton) is not dict or state.keys() != skeleton.keys():
        raise _Differs
    learning = _Learning()
    entries: list[_Leaf | _Box | _Plain] = []
    for key, value in state.items():
        path = "" if key == PARTS else str(key)
        inline = key in INLINE
        entries.append(_Plain(path, 1, True) if inline else learning.node(value, skeleton[key], path, 1))
    made = _Box(dict, tuple(state), tuple(entries), {})
    shards = tuple(tuple(map(_without_tensors, shard)) for shard in planned.taken.shards)
    return _Mould(made, shards, planned.layouts, planned.starts)


def _without_tensors(component: Component) -> tuple[Component, dict[str, Any]]:
    """The component over nothing, and what it had found out about its tensors, which hangs on their facts alone."""
    for find_out in (component.storage, component.memory, component.places):  # now, for all saves to come
        find_out()
    empty = torch.empty(0, device="cpu")
    members = tuple(Held(m.key, empty, m.reference, m.bucket) for m in component.members)
    found = {name: value for name, value in vars(component).items() if name.startswith("_")}
    return Component(members, component.size, component.copied), found


class _Learning:
    """Goes along a state and its skeleton. What stands in two places is not learnt."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._holding: dict[int, bool] = {}

    def node(self, value: Any, out: Any, path: str, depth: int) -> _Leaf | _Box | _Plain:
        if isinstance(value, torch.Tensor):
            if type(out) is not dict or out.get(TAG) != "tensor" or value.is_neg() or value.is_conj():
                raise _Differs
            return _Leaf(type(value), _facts(value), out)
        if not self._holds_reference(out):
            return _Plain(path, depth)
        kind = type(value)
        if kind is not type(out) or len(value) != len(out) or id(value) in self._seen:
            raise _Differs  # a deque of tensors, an array: such are done anew each time
        self._seen.add(id(value))
        if kind in (list, tuple):
            each = enumerate(zip(value, out, strict=True))
            entries = tuple(self.node(item, kept, join(path, n), depth + 1) for n, (item, kept) in each)
            return _Box(kind, (len(value),), entries, {})
        if TAG in out:
            raise _Differs
        pairs = zip(value.items(), out.values(), strict=True)
        entries = tuple(self.node(item, kept, join(path, key), depth + 1) for (key, item), kept in pairs)
        named = vars(out) if kind is collections.OrderedDict else {}
        attributes = {
            name: self.node(vars(value)[name], kept, join(path, name), depth + 1)
            for name, kept in named.items()
        }
        return _Box(kind, tuple(value), entries, attributes)

    def _holds_reference(self, out: Any) -> bool:
        if type(out) not in (dict, list, tuple, collections.OrderedDict):
            return False
        found = self._holding.get(id(out))
        if found is None:
            if isinstance(out, dict):
                named = list(vars(out).values()) if isinstance(out, collections.OrderedDict) else []
                inner = [*out.values(), *named]
            else:
                inner = list(out)
            is_one = type(out) is dict and out.get(TAG) == "tensor"
            found = self._holding[id(out)] = is_one or any(map(self._holds_reference, inner))
        return found


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that decides how a tensor is saved, but for its bytes."""
    return (
        tensor.data_ptr(),
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad and tensor.is_leaf,
        tensor.device,
        tensor.layout,
        tensor.is_neg() or tensor.is_conj(),
    )


def _cast(state: Mapping[str, Any], mould: _Mould) -> Plan:
    casting = _Casting()
    skeleton = casting.box(state, mould.made)
    shards = tuple(tuple(casting.component(*old) for old in shard) for shard in mould.shards)
    return Plan(Taken(skeleton, shards), mould.layouts, mould.starts)


class _Casting:
    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}  # by the number in the reference
        self._conversion = Conversion()
        self._seen: set[int] = set()

    def box(self, value: Any, made: _Box) -> Any:
        """A container of the same kind with the same keys. Its references are those of before."""
        if type(value) is not made.kind or id(value) in self._seen:
            raise _Differs
        self._seen.add(id(value))
        if made.kind in (list, tuple):
            if (len(value),) != made.keys:
                raise _Differs
            return made.kind([self._entry(item, old) for item, old in zip(value, made.entries, strict=True)])
        if tuple(value) != made.keys:
            raise _Differs
        pairs = zip(value.items(), made.entries, strict=True)
        result = made.kind([(key, self._entry(item, old)) for (key, item), old in pairs])
        if made.kind is collections.OrderedDict:
            named = vars(value)
            if named.keys() != made.attributes.keys():
                raise _Differs
            for name, item in named.items():
                vars(result)[name] = self._entry(item, made.attributes[name])
        return result

    def component(self, old: Component, found: dict[str, Any]) -> Component:
        members = tuple(
            Held(m.key, self._tensors[m.reference["n"]], m.reference, m.bucket) for m in old.members
        )
        new = Component(members, old.size, old.copied)
        vars(new).update(found)
        return new

    def _entry(self, value: Any, made: _Leaf | _Box | _Plain) -> Any:
        if isinstance(made, _Leaf):
            if not isinstance(value, torch.Tensor) or type(value) is not made.kind:
                raise _Differs
            if _facts(value) != made.facts:
                raise _Differs
            self._tensors[made.reference["n"]] = value.detach() if value.requires_grad else value
            return made.reference
        if isinstance(made, _Box):
            return self.box(value, made)
        before = self._conversion.tensors
        converted = self._conversion.convert(value, made.path, made.depth)
        if self._conversion.tensors != before and not made.inline:
            raise _Differs  # a tensor that would have to be taken out
        return converted
