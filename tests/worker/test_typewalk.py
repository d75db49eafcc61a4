"""The walk over a state's types: what is saved is what loads again, and the rest is refused by name."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import math
import pathlib
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_worker.digest import first_difference, state_sha256
from outlast_worker.ptfile import load_pt, stream
from outlast_worker.typewalk import TAG, NotLoadable, loadable, original

Pair = collections.namedtuple("Pair", "a b")


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class OwnInt(int):
    pass


class OwnDict(dict):  # type: ignore[type-arg]
    pass


class OwnOrdered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class OwnTensor(torch.Tensor):
    pass


class OwnArray(np.ndarray):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass
class Data:
    a: int = 1


def round_trip(value: Any) -> Any:
    """Through a file and back, alone."""
    return original(load_pt(b"".join(stream({"x": loadable(value)}))))["x"]


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def itself() -> Any:
    tree: list[Any] = []
    tree.append(tree)
    return tree


def resized(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(nbytes)
    return tensor


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lambda": (lambda: lambda x: x, "function"),
    "builtin": (lambda: len, "builtin_function_or_method"),
    "partial": (lambda: functools.partial(int, base=2), "functools.partial"),
    "class": (lambda: int, "type"),
    "enum": (lambda: Colour.RED, "Colour"),
    "int enum": (lambda: Level.LOW, "Level"),
    "str enum": (lambda: Word.A, "Word"),
    "int subclass": (lambda: OwnInt(3), "OwnInt"),
    "dict subclass": (lambda: OwnDict(a=1), "OwnDict"),
    "OrderedDict subclass": (lambda: OwnOrdered(a=1), "OwnOrdered"),
    "namedtuple": (lambda: Pair(1, 2), "Pair"),
    "dataclass": (Data, "Data"),
    "namespace": (lambda: types.SimpleNamespace(a=1), "types.SimpleNamespace"),
    "path": (lambda: pathlib.Path("a"), "PosixPath"),
    "datetime": (lambda: datetime.datetime(2020, 1, 1), "datetime.datetime"),
    "timedelta": (lambda: datetime.timedelta(1), "datetime.timedelta"),
    "decimal": (lambda: decimal.Decimal(1), "decimal.Decimal"),
    "fraction": (lambda: fractions.Fraction(1, 2), "fractions.Fraction"),
    "uuid": (lambda: uuid.UUID(int=1), "uuid.UUID"),
    "slice": (lambda: slice(1), "slice"),
    "ellipsis": (lambda: ..., "ellipsis"),
    "iterator": (lambda: iter([1]), "list_iterator"),
    "module": (lambda: torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    "generator": (lambda: torch.Generator(), "torch._C.Generator"),
    "numpy generator": (lambda: np.random.default_rng(1), "numpy.random._generator.Generator"),
    "storage": (lambda: torch.ones(2).untyped_storage(), "torch.storage.UntypedStorage"),
    "object array": (lambda: np.array([object()], dtype=object), "numpy.ndarray of object"),
    "record array": (lambda: np.zeros(2, dtype=[("a", "i4")]), "numpy.ndarray of"),
    "long double": (lambda: np.longdouble(1), "numpy.longdouble"),
    "array subclass": (lambda: np.zeros(2).view(OwnArray), "OwnArray"),
    "tensor subclass": (lambda: torch.ones(2).as_subclass(OwnTensor), "OwnTensor"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "torch.Tensor: the layout torch.sparse_coo"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), "torch.Tensor: the layout torch.sparse_csr"),
    "meta": (lambda: torch.empty(2, device="meta"), "torch.Tensor: it lies on the meta device"),
    "lazy": (
        lambda: torch.nn.LazyLinear(2).weight,
        "torch.nn.parameter.UninitializedParameter: it has no shape",
    ),
    "freed": (lambda: resized(torch.ones(2, 3), 0), "torch.Tensor: its storage was made too small"),
    "a byte less": (
        lambda: resized(torch.ones(2, 3).t(), 23),
        "torch.Tensor: its storage was made too small",
    ),
    "the end gone": (lambda: resized(torch.ones(9)[6:], 32), "torch.Tensor: its storage was made too small"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1)]), "torch.Tensor: nested tensors"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "torch.Tensor: quantized tensors",
    ),
    "four bits": (
        lambda: torch.empty(2, dtype=torch.uint4),
        "torch.Tensor: torch has no copies of torch.uint4",
    ),
    "own factory": (
        lambda: collections.defaultdict(lambda: 1),
        "collections.defaultdict: its default factory",
    ),
    "too deep": (lambda: deep(101), "list: nested deeper than 100 levels"),
    "itself": (itself, "list: it contains itself"),
    "enum in a set": (lambda: {Colour.RED}, "Colour"),
    "enum as a key": (lambda: {Colour.RED: 1}, "Colour"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_load_is_refused_by_path_and_type(name: str) -> None:
    """A value that the safe loader refuses is an error that says where it is and what it is."""
    make, told = REFUSED[name]
    with pytest.raises(NotLoadable) as caught:
        loadable({"scheduler": {"lr_lambdas": [{"a": make()}]}})
    text = str(caught.value)
    assert text.startswith("scheduler/lr_lambdas/0/a"), text
    assert told in text, text
    assert isinstance(caught.value, ValueError)


KEPT: dict[str, Callable[[], Any]] = {
    "int": lambda: 2**70,
    "huge int": lambda: -(3**20000),
    "bool": lambda: True,
    "nan": lambda: math.nan,
    "minus zero": lambda: -0.0,
    "complex": lambda: complex(-0.0, math.inf),
    "bytes": lambda: b"\0\xff",
    "bytearray": lambda: bytearray(b"x"),
    "empty bytes": lambda: b"",
    "empty bytearray": lambda: bytearray(),
    "empty bytes as a key": lambda: {b"": 1},
    "empty bytes in a set": lambda: {b"", b"a"} - {b""},
    "surrogate": lambda: "\ud800",
    "tuple": lambda: ((), (1, (2,)), [()]),
    "dict with odd keys": lambda: {1: 1, None: 2, (1, "a"): 3, 1.5: 4, b"k": 5},
    "numpy key": lambda: {np.int64(3): 1},
    "our own tag": lambda: {TAG: "tensor", "key": 3},
    "OrderedDict": lambda: collections.OrderedDict(b=1, a=[2]),
    "Counter": lambda: collections.Counter("aab"),
    "defaultdict": lambda: collections.defaultdict(list, {"a": [np.float32(1)]}),
    "defaultdict without factory": lambda: collections.defaultdict(None, a=1),
    "deque": lambda: collections.deque([1, (2,)], 5),
    "set": lambda: {1, "a", (2, 3)},
    "frozenset": lambda: frozenset([1, 2]),
    "range": lambda: range(1, 9, 2),
    "size": lambda: torch.Size([1, 2]),
    "dtype": lambda: torch.bfloat16,
    "device": lambda: torch.device("cuda", 1),
    "layout": lambda: torch.strided,
    "numpy dtype": lambda: np.dtype(">f4"),
    "numpy state": lambda: np.random.RandomState(3).get_state(),
    "pcg": lambda: np.random.PCG64(3).state,
    "philox": lambda: np.random.Philox(3).state,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
}
SCALARS = [
    np.float64(0.1),
    np.float32(0.1),
    np.float16(0.1),
    np.float32("nan"),
    np.int8(-1),
    np.uint64(2**63),
    np.bool_(True),
    np.complex64(1 + 2j),
    np.str_("ä"),
    np.str_(""),
    np.bytes_(b"x"),
    np.bytes_(b""),
    np.datetime64("2020-01-01T01"),
    np.timedelta64(3, "s"),
]
ARRAYS = [
    np.arange(6, dtype=np.uint32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::3],
    np.array(1.5),
    np.zeros((0, 3)),
    np.array([True, False]),
    np.array(["ab", "c"]),
    np.array([b"ab"]),
    np.array([1, 2], dtype=">i4"),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.array([1j], dtype=np.complex64),
    np.zeros((3, 0), dtype="<U4"),
]


@pytest.mark.parametrize("name", KEPT)
def test_what_loads_is_the_same_in_type_and_value(name: str) -> None:
    """A value comes back with its type, its entries in their order, and its digest."""
    value = KEPT[name]()
    back = round_trip(value)
    assert type(back) is type(value)
    assert first_difference(value, back) is None
    assert state_sha256(value) == state_sha256(back)
    if isinstance(value, dict):
        assert list(back) == list(value)
        assert getattr(back, "default_factory", None) is getattr(value, "default_factory", None)


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{type(value).__name__}-{value!r}")
def test_numpy_scalars_keep_type_and_bits(value: np.generic) -> None:
    """A numpy scalar comes back as that scalar, since float32 arithmetic is not that of a Python float."""
    back = round_trip([value])[0]
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()
    assert state_sha256(back) == state_sha256(value)


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype.str}-{value.shape}")
def test_numpy_arrays_keep_type_shape_bits_and_order(value: np.ndarray[Any, Any]) -> None:
    """A numpy array comes back whole, writable, and in its order in memory, which decides sums."""
    back = round_trip(value)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert back.tobytes() == value.tobytes()
    assert back.flags.writeable
    if value.size and (value.flags.c_contiguous or value.flags.f_contiguous):
        assert back.flags.f_contiguous == value.flags.f_contiguous


def test_numbers_that_look_alike_stay_apart() -> None:
    """1, 1.0, True and numpy's forms of them keep their types, as values and as entries."""
    values = [1, 1.0, True, np.int64(1), np.float64(1), np.bool_(True), np.float32(1)]
    assert [type(value) for value in round_trip(values)] == [type(value) for value in values]
    assert len({state_sha256(value) for value in values}) == len(values)


def test_a_shared_list_stays_shared() -> None:
    """One list that stands in two places comes back as one."""
    shared = [1]
    back = round_trip({"a": shared, "b": shared})
    assert back["a"] is back["b"]


def test_layer_versions_of_a_module_are_kept() -> None:
    """The attribute that a module's state dict carries comes back with it."""
    state = torch.nn.BatchNorm1d(3).state_dict()
    back = round_trip(state)
    assert vars(back)["_metadata"] == vars(state)["_metadata"]


def test_the_walk_changes_nothing() -> None:
    """The tree that is walked stays as it was."""
    tree = {"a": [np.float32(1)], "b": collections.OrderedDict(c=np.arange(3))}
    before = state_sha256(tree)
    loadable(tree)["a"].append(1)
    assert state_sha256(tree) == before
    assert len(tree["a"]) == 1


def test_every_scheduler_and_optimizer_of_torch_is_loadable() -> None:
    """No scheduler or optimizer that torch has holds state which can't be saved."""
    for make in scheduler_makers():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
        state = scheduler.state_dict()
        if callable(state.get("anneal_func")):
            continue  # SWALR of torch before 2.13 leaves a function in its state
        assert first_difference(state, round_trip(state)) is None, type(scheduler).__name__
    for name in ("Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"):
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = getattr(torch.optim, name)([parameter])
        parameter.sum().backward()
        optimizer.step()
        assert first_difference(optimizer.state_dict(), round_trip(optimizer.state_dict())) is None


def scheduler_makers() -> list[Callable[[torch.optim.Optimizer], Any]]:
    s = torch.optim.lr_scheduler
    return [
        lambda o: s.LambdaLR(o, lambda n: 0.9**n),
        lambda o: s.MultiplicativeLR(o, lambda n: 0.9),
        lambda o: s.StepLR(o, 3),
        lambda o: s.MultiStepLR(o, [2, 4]),
        lambda o: s.ConstantLR(o),
        lambda o: s.LinearLR(o),
        lambda o: s.ExponentialLR(o, 0.9),
        lambda o: s.PolynomialLR(o),
        lambda o: s.CosineAnnealingLR(o, 10),
        lambda o: s.CosineAnnealingWarmRestarts(o, 4),
        lambda o: s.CyclicLR(o, 0.1, 0.2),
        lambda o: s.OneCycleLR(o, 0.1, 10),
        lambda o: s.ReduceLROnPlateau(o),
        lambda o: s.SequentialLR(o, [s.ConstantLR(o), s.ExponentialLR(o, 0.9)], [2]),
        lambda o: s.ChainedScheduler([s.ConstantLR(o), s.ExponentialLR(o, 0.9)]),
        lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
    ]


@pytest.mark.parametrize(
    "tag",
    [
        {TAG: "unheard of"},
        {TAG: 3},
        {TAG: "int"},
        {TAG: "int", "hex": "zz"},
        {TAG: "range", "args": ("a",)},
        {TAG: "numpy.dtype", "dtype": "nonsense"},
        {TAG: "numpy.scalar", "dtype": "<f4", "value": b"123"},
        {TAG: "numpy.scalar", "dtype": "O", "value": b"12345678"},
        {TAG: "numpy.ndarray", "dtype": "<f4", "shape": (3,), "order": "C", "data": torch.ones(2)},
        {
            TAG: "numpy.ndarray",
            "dtype": "O",
            "shape": (1,),
            "order": "C",
            "data": torch.zeros(8, dtype=torch.uint8),
        },
        {TAG: "deque", "items": 3, "maxlen": None},
        {TAG: "defaultdict", "factory": "eval", "items": []},
        {TAG: "frozenset", "items": [[]]},
    ],
    ids=repr,
)
def test_a_tag_that_nobody_wrote_is_a_value_error(tag: dict[str, Any]) -> None:
    """Damaged or invented tags raise ValueError and nothing else."""
    with pytest.raises(ValueError):
        original({"a": [tag]})


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([np.float32(0.5), np.int64(3), torch.Size([2]), torch.float16]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.booleans(), inner, max_size=3)
        | st.lists(inner, max_size=3).map(collections.deque)
        | st.frozensets(st.integers() | st.text(max_size=2), max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(plain)
def test_any_tree_of_plain_values_comes_back(tree: Any) -> None:
    """Whatever is accepted is given back, by type, value and digest."""
    back = round_trip(tree)
    assert first_difference(tree, back) is None
    assert state_sha256(tree) == state_sha256(back)
