"""Which tensor goes into which shard: in turn, by kind of parameter, by the optimizer's groups, or by size.

round_robin  One after the other, in the order of the state. The layout does not hang on sizes, so it stays the
             same while a model is changed; to be preferred where the tensors are of like size, and to read all
             shards at the same time.
suffix       Parameters whose names end in ``.weight``, in ``.bias``, and the rest, each with their moments. To
             be preferred where one kind is looked at or replaced without the other: biases alone are a small
             file. The shards are of very unequal size.
groups       A shard for each parameter group of the optimizer, with its moments, and one for what is in none.
             To be preferred in fine-tuning: what is frozen lies apart from what is trained.
size         About equal bytes in each: the largest tensor first, each into the lightest shard. To be preferred
             for large models: it bounds the largest file and makes reading in parallel take the least time.

Tensors that share memory always stay together, so that tied weights load tied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from outlast_worker.digest import NAMES, OPTIMIZER
from outlast_worker.shards import Component, Taken, packed

Strategy = Literal["round_robin", "suffix", "groups", "size"]

_DEFAULT_SHARDS = 2
_REST = "the rest"


def arrange(
    taken: Taken, tree: Mapping[str, Any], strategy: Strategy, num_shards: int | None
) -> tuple[Taken, list[str]]:
    """The same tensors in other shards, and what each holds in a word. Shards of nothing are left out."""
    parts = [component for shard in taken.shards for component in shard]
    parts.sort(key=lambda component: int(component.members[0].reference["n"]))
    labelled = _plan(parts, tree, strategy, num_shards)
    shards = [(label, members) for label, members in labelled if members]
    for number, (_, members) in enumerate(shards):
        for component in members:
            for held in component.members:
                held.reference["shard"] = number
    return Taken(taken.skeleton, tuple(tuple(members) for _, members in shards)), [
        label for label, _ in shards
    ]


def _plan(
    parts: Sequence[Component], tree: Mapping[str, Any], strategy: Strategy, num_shards: int | None
) -> list[tuple[str, list[Component]]]:
    if strategy in ("round_robin", "size"):
        count = _DEFAULT_SHARDS if num_shards is None else num_shards
        if count < 1:
            raise ValueError(f"cannot save in {count} shards: give 1 or more")
        bins = _in_turn(parts, count) if strategy == "round_robin" else _by_size(parts, count)
        return [(strategy, members) for members in bins]
    if strategy not in ("suffix", "groups"):
        raise ValueError(f"no strategy {strategy!r}; there are round_robin, suffix, groups and size")
    if num_shards is not None:
        raise ValueError(f"{strategy!r} makes as many shards as there are groups; leave num_shards out")
    names = _Owners(tree)
    labels = _suffixes() if strategy == "suffix" else names.groups()
    found: dict[str, list[Component]] = {label: [] for label in (*dict.fromkeys(labels.values()), _REST)}
    for component in parts:
        owner = names.owner(component.members[0].key)
        key = owner.rpartition(".")[2] if strategy == "suffix" else owner
        found[labels.get(key, _REST)].append(component)
    return list(found.items())


def _in_turn(parts: Sequence[Component], count: int) -> list[list[Component]]:
    return [list(parts[first::count]) for first in range(count)]


def _by_size(parts: Sequence[Component], count: int) -> list[list[Component]]:
    return [[parts[index] for index in members] for members in packed([part.size for part in parts], count)]


def _suffixes() -> dict[str, str]:
    return {"weight": "weights", "bias": "biases"}


class _Owners:
    """To which parameter a tensor belongs: itself, or the one that it is a moment of."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self._optimizers = {
            part: state
            for part, state in tree["parts"].items()
            if tree["kinds"].get(part) == OPTIMIZER and NAMES in state
        }

    def owner(self, key: str) -> str:
        """MODULE.NAME for a key of the state tree, or what comes nearest."""
        part, _, rest = key.partition("/")
        if part not in self._optimizers:
            return f"{part}.{rest}"
        names, pieces = self._optimizers[part][NAMES], rest.split("/")
        if pieces[0] == "state" and len(pieces) > 1 and pieces[1].isdecimal() and int(pieces[1]) < len(names):
            return names[int(pieces[1])] or f"{part}.{rest}"
        return f"{part}.{rest}"

    def groups(self) -> dict[str, str]:
        """The label of its group for each parameter."""
        if not self._optimizers:
            raise ValueError("no optimizer whose groups could make shards; pass one, or another strategy")
        return {
            names: f"{part} group {number}"
            for part, state in self._optimizers.items()
            for number, group in enumerate(state["param_groups"])
            for names in (state[NAMES][index] for index in group["params"])
            if names is not None
        }
