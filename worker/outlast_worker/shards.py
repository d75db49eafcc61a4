"""Move tensors out of a state tree into shards of about equal size, and put them back.

A shard is a plain ``.pt`` file: a dict from path to tensor. Tensors that share memory stay in one shard, as
views of one storage, so that tied weights load tied; a view into a larger storage is saved without the rest.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import torch

from outlast_worker.layout import Storage, View
from outlast_worker.typewalk import TAG, join

MAX_SHARD_BYTES = 512 << 20
PARTS = "parts"
Place: TypeAlias = tuple[Any, ...]
"""What makes two tensors the same in memory."""
Apart = Callable[[torch.Tensor], bool]
"""Whether a tensor belongs into shards of another kind."""
SPLIT_FROM_BYTES = 16 << 10  # a state larger than this is saved in at least two shards


class Held(msgspec.Struct, frozen=True, eq=False):
    """A tensor that was taken out of the tree, and the reference that stands there now."""

    key: str
    tensor: torch.Tensor
    reference: dict[str, Any]
    bucket: str = ""
    """The entry of the state under which it stood."""


class Component(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Tensors that must stay together since they overlap in memory; ``size`` is what they take in a file.

    What is found out about them is kept, and hangs on nothing but where each lies and as what.
    """

    members: tuple[Held, ...]
    size: int
    copied: bool = False  # other components lie in the same memory, as another type: torch.save takes one

    def content(self, *, own: bool = False) -> dict[str, torch.Tensor]:
        """The tensors on the CPU, with their strides and their sharing, and nothing around them.

        With ``own`` none of it is the live tensors' memory.
        """
        first = self.members[0].tensor
        if self._is_one:
            tensor = _alone(first, self.copied or own)
            return {member.key: tensor for member in self.members}
        start = min(_span(member.tensor)[0] for member in self.members)
        end = max(_span(member.tensor)[1] for member in self.members)
        window = _window(first, start, end)
        return {
            m.key: window.as_strided(
                m.tensor.shape, m.tensor.stride(), int(m.tensor.storage_offset()) - start
            )
            for m in self.members
        }

    def storage(self) -> Storage:
        """What ``content`` will hold, without making it."""
        return self._storage

    def memory(self) -> int | None:
        """Where the bytes of that storage lie already, in this process; None where they have to be made."""
        return self._address

    def places(self) -> tuple[Place, ...]:
        """Where each of the tensors lies."""
        return self._places

    @functools.cached_property
    def _places(self) -> tuple[Place, ...]:
        return tuple(place(member.tensor) for member in self.members)

    @functools.cached_property
    def _address(self) -> int | None:
        first = self.members[0].tensor
        if first.device.type != "cpu" or self._compact:
            return None
        start, end = self._extent
        if start == end:
            return int(first.untyped_storage().data_ptr()) + start * first.element_size()
        return int(first.data_ptr()) + (start - int(first.storage_offset())) * first.element_size()

    def place(self) -> tuple[torch.UntypedStorage, int] | None:
        """The memory in which they lie, on whatever device, and from which byte on; None where they have to be made."""
        if self._compact:
            return None
        first = self.members[0].tensor
        return first.untyped_storage(), self._extent[0] * first.element_size()

    def dense(self, bucket: str) -> torch.dtype | None:
        """The floating type of which that storage is full, all of it of this bucket; None where it isn't so."""
        first = self.members[0]
        whole = self._is_one and 0 not in first.tensor.stride() and first.tensor.is_floating_point()
        return first.tensor.dtype if whole and all(m.bucket == bucket for m in self.members) else None

    @functools.cached_property
    def _is_one(self) -> bool:
        if len(self.members) == 1:
            return True
        return (
            len({(m.tensor.storage_offset(), m.tensor.shape, m.tensor.stride()) for m in self.members}) == 1
        )

    @functools.cached_property
    def _compact(self) -> bool:
        """Whether its elements lie apart, and will be copied together."""
        start, end = self._extent
        return self._is_one and end - start > self.members[0].tensor.numel()

    @functools.cached_property
    def _extent(self) -> tuple[int, int]:
        spans = [_span(member.tensor) for member in self.members]
        return min(start for start, _ in spans), max(end for _, end in spans)

    @functools.cached_property
    def _storage(self) -> Storage:
        first = self.members[0].tensor
        if self._compact:
            compact = torch.empty_strided(
                first.shape, first.stride(), dtype=first.dtype, device="meta"
            ).clone()
            view = (first.dtype, tuple(first.shape), compact.stride(), 0)
            return Storage(
                first.numel() * first.element_size(), tuple(View(m.key, *view) for m in self.members)
            )
        start, end = self._extent
        views = tuple(
            View(
                m.key,
                m.tensor.dtype,
                tuple(m.tensor.shape),
                m.tensor.stride(),
                int(m.tensor.storage_offset()) - start,
            )
            for m in self.members
        )
        return Storage((end - start) * first.element_size(), views)


class Taken(msgspec.Struct, frozen=True):
    """A state tree without its tensors, and the shards that hold them."""

    skeleton: Any
    shards: tuple[tuple[Component, ...], ...]

    def content(self, shard: int, *, own: bool = False) -> dict[str, torch.Tensor]:
        """What one shard's file holds; made when it is asked for, so that only one copy lives at a time.

        ``own`` is as for `Component.content`.
        """
        content: dict[str, torch.Tensor] = {}
        for component in self.shards[shard]:
            content.update(component.content(own=own))
        return {key: content[key] for key in self.order(shard)}

    def tensors(self, shard: int, bucket: str) -> list[torch.Tensor]:
        """Those of one shard that stood under this entry of the state."""
        return [m.tensor for component in self.shards[shard] for m in component.members if m.bucket == bucket]

    def order(self, shard: int) -> list[str]:
        """The keys of one shard in the order of the tree, which people find again, and not by size."""
        members = [m for component in self.shards[shard] for m in component.members]
        return [m.key for m in sorted(members, key=lambda m: m.reference["n"])]


def place(tensor: torch.Tensor) -> Place:
    """Where a tensor lies, and as what."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def take_out(
    tree: Any,
    *,
    inline: Sequence[str] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
    apart: Apart | None = None,
) -> Taken:
    """Replace each tensor of a loadable tree by a reference; entries named in ``inline`` keep theirs.

    Tensors of which ``apart`` says so share no shard with others, and their shards come first.
    """
    taker = _Taker()
    if isinstance(tree, dict):
        skeleton: Any = {
            key: item if key in inline else taker.take(item, "" if key == PARTS else str(key), str(key))
            for key, item in tree.items()
        }
    else:
        skeleton = taker.take(tree, "")
    found = components(taker.held)
    alone: list[Component] = []
    others: list[Component] = []
    for component in found:
        among = apart is not None and all(apart(member.tensor) for member in component.members)
        (alone if among else others).append(component)
    shards = tuple(
        tuple(group[index] for index in indices)
        for group in ((alone, others) if alone and others else (found,))
        for indices in by_size([component.size for component in group], max_shard_bytes)
    )
    for number, shard in enumerate(shards):
        for component in shard:
            for member in component.members:
                member.reference["shard"] = number
    return Taken(skeleton, shards)


def put_back(skeleton: Any, shards: Sequence[Mapping[str, Any]]) -> Any:
    """The tree with its tensors. ValueError where a reference and the shards do not agree."""
    return _Putter(shards).put(skeleton)


def components(held: Sequence[Held]) -> list[Component]:
    """Group tensors by overlap in memory, in order of first appearance."""
    by_storage: dict[Any, list[Held]] = collections.defaultdict(list)
    for index, item in enumerate(held):
        tensor = item.tensor
        # one storage seen as two types can't be saved as one, so these are saved apart; so are empty tensors
        memory = _memory(tensor) if tensor.numel() else index
        by_storage[memory, tensor.dtype].append(item)
    groups: list[list[Held]] = []
    for items in by_storage.values():
        reach = -1
        for item in sorted(items, key=lambda item: _span(item.tensor)):
            start, end = _span(item.tensor)
            if start >= reach:
                groups.append([])
            groups[-1].append(item)
            reach = max(reach, end)
    groups = [sorted(group, key=lambda item: item.reference["n"]) for group in groups]
    groups.sort(key=lambda group: group[0].reference["n"])
    types: dict[Any, set[torch.dtype]] = collections.defaultdict(set)
    for item in held:
        types[_memory(item.tensor)].add(item.tensor.dtype)
    return [Component(tuple(g), _size(g), len(types[_memory(g[0].tensor)]) > 1) for g in groups]


def by_size(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Distribute items over bins of about equal sums, none above ``limit`` unless a single item is.

    At least one bin, and two where the sum is not small.
    """
    total = sum(sizes)
    least = 2 if total > SPLIT_FROM_BYTES else 1
    count = max(least, -(-total // max(limit, 1)))
    while True:
        count = max(1, min(count, len(sizes)))
        bins = packed(sizes, count)
        fits = all(len(members) == 1 or sum(sizes[index] for index in members) <= limit for members in bins)
        if fits or count == len(sizes):
            return bins
        count += 1


def packed(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distribute items over so many bins: the largest first, each into the lightest bin."""
    bins: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        lightest = sums.index(min(sums))
        bins[lightest].append(index)
        sums[lightest] += sizes[index]
    return [sorted(members) for members in bins]


def _memory(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past last element of the storage that the tensor reaches."""
    start = int(tensor.storage_offset())
    if tensor.numel() == 0:
        return start, start
    reach = sum((int(n) - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + 1 + reach


def _alone(tensor: torch.Tensor, copied: bool) -> torch.Tensor:
    start, end = _span(tensor)
    whole = tensor.untyped_storage().nbytes() == (end - start) * tensor.element_size()
    if end - start > tensor.numel():
        return tensor.clone().cpu()  # holes between the elements: a compact copy
    if whole and not copied and tensor.device.type == "cpu":
        return tensor
    return _window(tensor, start, end).as_strided(tensor.shape, tensor.stride(), 0)


def _window(tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """A copy of these elements of its storage, on the CPU."""
    window = tensor.as_strided((end - start,), (1,), start)
    return window.clone() if window.device.type == "cpu" else window.cpu()


def _size(group: Sequence[Held]) -> int:
    first = group[0].tensor
    if first.numel() == 0:
        return 0
    spans = [_span(item.tensor) for item in group]
    elements = max(end for _, end in spans) - min(start for start, _ in spans)
    if len(group) == 1:
        elements = min(elements, first.numel())
    return elements * first.element_size()


class _Taker:
    def __init__(self) -> None:
        self.held: list[Held] = []
        self._keys: set[str] = set()
        self._bucket = ""
        self._memo: dict[int, Any] = {}

    def take(self, value: Any, path: str, bucket: str | None = None) -> Any:
        if bucket is not None:
            self._bucket = bucket
        if isinstance(value, torch.Tensor):
            return self._reference(value, path)
        if type(value) not in (list, tuple, dict, collections.OrderedDict):
            return value
        if id(value) not in self._memo:
            self._memo[id(value)] = self._container(value, path)
        return self._memo[id(value)]

    def _container(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            bucket = self._bucket
            if value.get(TAG) == "numpy.ndarray":  # stands for an array, and is no tensor of the state
                self._bucket = ""
            pairs = [(key, self.take(item, join(path, key))) for key, item in value.items()]
            self._bucket = bucket
            result = type(value)(pairs)
            if isinstance(value, collections.OrderedDict):
                result.__dict__.update(
                    {name: self.take(item, join(path, name)) for name, item in vars(value).items()}
                )
            return result
        return type(value)(self.take(item, join(path, n)) for n, item in enumerate(value))

    def _reference(self, tensor: torch.Tensor, path: str) -> dict[str, Any]:
        key, number = path or ".", 2
        while key in self._keys:
            key, number = f"{path}#{number}", number + 1
        self._keys.add(key)
        reference = {TAG: "tensor", "n": len(self.held), "shard": -1, "key": key}
        if tensor.requires_grad and tensor.is_leaf:
            reference["requires_grad"] = True
        if type(tensor) is torch.nn.Parameter:
            reference["parameter"] = True
        self.held.append(Held(key, tensor.detach().resolve_conj().resolve_neg(), reference, self._bucket))
        return reference


class _Putter:
    def __init__(self, shards: Sequence[Mapping[str, Any]]) -> None:
        self._shards = shards
        self._memo: dict[int, Any] = {}

    def put(self, value: Any) -> Any:
        if type(value) not in (list, tuple, dict, collections.OrderedDict):
            return value
        if id(value) not in self._memo:
            self._memo[id(value)] = self._container(value)
        return self._memo[id(value)]

    def _container(self, value: Any) -> Any:
        if type(value) is dict and value.get(TAG) == "tensor":
            return self._tensor(value)
        if isinstance(value, dict):
            result = type(value)((key, self.put(item)) for key, item in value.items())
            if isinstance(value, collections.OrderedDict):
                result.__dict__.update({name: self.put(item) for name, item in vars(value).items()})
            return result
        return type(value)(self.put(item) for item in value)

    def _tensor(self, reference: Mapping[str, Any]) -> torch.Tensor:
        number, key = reference.get("shard"), reference.get("key")
        if type(number) is not int or not 0 <= number < len(self._shards):
            raise ValueError(f"the tensor {key!r} is said to be in shard {number!r} of {len(self._shards)}")
        tensor = self._shards[number].get(key) if isinstance(key, str) else None
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"the tensor {key!r} is not in shard {number}")
        grad = bool(reference.get("requires_grad"))
        if reference.get("parameter"):
            return torch.nn.Parameter(tensor, requires_grad=grad)
        return tensor.detach().requires_grad_(grad)  # an object of its own: tied ones may differ in this
