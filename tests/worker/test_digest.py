"""The digest of state: equal for equal values however they are stored, different for any other."""

from __future__ import annotations

import collections
import copy
import itertools
import math
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from outlast_jobs.contract import Schema
from outlast_worker.digest import by_name, first_difference, state_sha256
from outlast_worker.typewalk import NotLoadable

APART: list[Any] = [
    None,
    0,
    0.0,
    -0.0,
    False,
    "",
    b"",
    (),
    [],
    {},
    set(),
    "0",
    b"0",
    [0],
    (0,),
    [[]],
    [None],
    {0: 0},
    {"0": 0},
    {False: 0},
    {0.0: 0},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {"a": {"b": 1}},
    {"a/b": 1},
    ["a", "b"],
    ["ab"],
    {1},
    math.nan,
    math.inf,
    1e-320,
    0j,
    torch.zeros(1),
    torch.zeros(()),
    torch.zeros(1, 1),
    torch.zeros(0),
    torch.zeros(0, 2),
    -torch.zeros(1),
    torch.zeros(1, dtype=torch.float64),
    torch.zeros(1, dtype=torch.int32),
    torch.zeros(1, dtype=torch.bool),
    torch.tensor([math.nan]),
    np.zeros(1),
    np.zeros(1, dtype=np.float32),
    np.float32(0),
    np.float64(0),
    np.int64(0),
    torch.float32,
    torch.device("cpu"),
    torch.Size([0]),
    collections.deque([0]),
    collections.deque([0], 3),
    range(3),
]


def test_different_values_have_different_digests() -> None:
    """int, float, bool, text, empty containers, shapes, dtypes, zeros with and without sign: all differ."""
    for (n, one), (m, two) in itertools.combinations(enumerate(APART), 2):
        assert state_sha256(one) != state_sha256(two), (n, m, one, two)
        assert first_difference(one, two) is not None, (n, m, one, two)
    for value in APART:
        assert first_difference(value, copy.deepcopy(value)) is None
        assert state_sha256(value) == state_sha256(copy.deepcopy(value))


def test_order_of_entries_does_not_count() -> None:
    """Mappings are digested by sorted keys and sets by sorted members; lists by their order."""
    assert state_sha256({"a": 1, "b": 2}) == state_sha256(collections.OrderedDict(b=2, a=1))
    assert state_sha256({3, 1, "x"}) == state_sha256({"x", 3, 1})
    assert state_sha256([1, 2]) != state_sha256([2, 1])


def test_nan_counts_by_its_bits() -> None:
    """Two NaNs of other bits are other values; one and the same NaN is equal to itself."""
    quiet = struct.unpack("<d", bytes.fromhex("000000000000f87f"))[0]
    other = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
    assert state_sha256(quiet) == state_sha256(math.nan)
    assert state_sha256(quiet) != state_sha256(other)
    one = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert state_sha256(one[:1]) != state_sha256(one[1:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.int64,
        torch.uint16,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_tensors_count_by_logical_values(dtype: torch.dtype) -> None:
    """Stride, offset, storage sharing, and requires_grad don't count; values do."""
    base = torch.arange(24).reshape(4, 6).to(torch.float32).to(dtype)
    transposed = base.t().contiguous().t()
    inside = torch.zeros(9, 9).to(dtype)
    inside[2:6, 1:7] = base
    digest = state_sha256({"w": base})
    assert transposed.stride() != base.stride()
    for same in (transposed, inside[2:6, 1:7], base.clone()):
        assert state_sha256({"w": same}) == digest
    if dtype.is_floating_point and dtype is not torch.float8_e4m3fn:
        assert state_sha256({"w": torch.nn.Parameter(base)}) == digest
    changed = base.clone()
    changed[3, 5] = base[0, 0]
    assert state_sha256({"w": changed}) != digest


def test_lazy_conjugates_and_expanded_tensors_count_by_value() -> None:
    """A conjugate view and an expanded tensor have the digest of what they stand for."""
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert state_sha256(z.conj()) == state_sha256(torch.tensor([1 - 2j, 3 + 1j]))
    assert state_sha256(z.conj().imag) == state_sha256(torch.tensor([-2.0, 1.0]))
    assert state_sha256(torch.ones(1).expand(3)) == state_sha256(torch.ones(3))


def test_one_changed_bit_anywhere_is_named() -> None:
    """The first difference is told with its path and kind."""
    old = {"parts": {"m": {"w": torch.zeros(3)}}, "counters": {"step": 1}}
    new = copy.deepcopy(old)
    new["parts"]["m"]["w"][2] = 1e-45
    assert first_difference(old, new) == "parts/m/w: the values of tensor float32 [3] differ"
    new = copy.deepcopy(old)
    new["counters"]["step"] = 1.0
    assert first_difference(old, new) == "counters/step: int became float"
    new = copy.deepcopy(old)
    new["counters"]["more"] = 1
    assert first_difference(new, old) == "counters/more: only the first has it"
    assert first_difference([1, 2], [1]) == "1: only the first has it"
    assert first_difference(old, new) == "counters/more: only the second has it"


def optimizer_tree(order: list[int]) -> dict[str, Any]:
    names = ["model.a", "model.b"]
    moments = [torch.ones(2), torch.full((2,), 2.0)]
    return {
        "state": {position: {"m": moments[which]} for position, which in enumerate(order)},
        "param_groups": [{"lr": 0.1, "params": [position]} for position in range(2)],
        "names": [names[which] for which in order],
    }


@pytest.mark.parametrize("skip", [0, 3, 8])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 24, 31])
def test_a_byte_that_differs_is_found_at_any_place(length: int, skip: int) -> None:
    """Whatever the length, and wherever in their memory the tensors begin, each single byte counts."""
    old = torch.arange(40, dtype=torch.uint8)[skip:][:length]
    assert first_difference(old, old.clone()) is None
    for at in range(length):
        new = old.clone()
        new[at] ^= 1
        assert first_difference(old, new) is not None
        assert first_difference(new, old) is not None


def test_optimizer_state_goes_by_name() -> None:
    """The moments belong to names, not to the numbers that the optimizer gave."""
    one, two = by_name(optimizer_tree([0, 1])), by_name(optimizer_tree([1, 0]))
    assert first_difference(one["state"], two["state"]) is None
    swapped = optimizer_tree([0, 1])
    swapped["names"].reverse()
    assert first_difference(one["state"], by_name(swapped)["state"]) is not None


def test_only_the_state_itself_counts() -> None:
    """Schema, kinds, wall times and whatever stands beside the buckets leave the digest alone."""
    state: dict[str, Any] = {
        "schema": Schema.META,
        "parts": {"optimizer": optimizer_tree([0, 1])},
        "kinds": {"optimizer": "optimizer"},
        "counters": {"step": 3, "epoch": 0, "batch_in_epoch": 3},
        "losses": [[1, 0.5]],
        "rng": {"torch": torch.get_rng_state()},
        "extra": {},
    }
    digest = state_sha256(state)
    assert state_sha256({**state, "saved_at": 1.0, "host": "a"}) == digest
    for bucket, value in {"losses": [[1, 0.25]], "extra": {"a": 1}, "counters": {}, "rng": {}}.items():
        assert state_sha256({**state, bucket: value}) != digest


def test_what_has_no_digest_is_refused_by_path() -> None:
    """An object without a digest is an error that names where it is."""
    with pytest.raises(NotLoadable, match="a/0: object"):
        state_sha256({"a": [object()]})
    with pytest.raises(NotLoadable, match=r"numpy\.ndarray"):
        state_sha256(np.array([None]))


def test_the_digest_is_pinned() -> None:
    """The digest of a known tree is this one, in every process, with -O, and in every later version."""
    code = (
        "import torch, numpy as np; from outlast_worker.digest import state_sha256;"
        "print(state_sha256({'w': torch.arange(4.).reshape(2, 2), 'n': [1, 1.5, True, None, 'ä', b'x'],"
        " 's': {'b', 'a'}, 'k': np.arange(3, dtype='u4')}))"
    )
    command = [sys.executable, "-O", "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "93635f59c7f43bc78db5c3a3636a44ebfdf682b5b648e2cd15ca91e188b4b534\n"


def test_a_digest_leaves_the_memory_as_it_is() -> None:
    """What was digested can be resized by the training as before."""
    tensor = torch.ones(4)
    state_sha256({"a": tensor})
    assert tensor.untyped_storage().resizable()
