"""Tensors moved out into shards: nothing around a view, ties kept, sizes even, files plain."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_worker.digest import state_sha256
from outlast_worker.ptfile import UnsafeTorch, load_pt, require_safe_loader, stream
from outlast_worker.shards import SPLIT_FROM_BYTES, Taken, by_size, put_back, take_out


def files(taken: Taken) -> list[bytes]:
    return [b"".join(stream(taken.content(number))) for number in range(len(taken.shards))]


def through(tree: Any, **options: Any) -> Any:
    taken = take_out(tree, **options)
    return put_back(load_pt(b"".join(stream(taken.skeleton))), [load_pt(data) for data in files(taken)])


CASES = {
    "zero-dim": lambda: torch.tensor(3.5),
    "empty": lambda: torch.zeros(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.randn(3, 4).bfloat16(),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "uint16": lambda: torch.ones(3, dtype=torch.uint16),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "transposed": lambda: torch.randn(3, 4).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "strided": lambda: torch.arange(20)[::3],
    "expanded": lambda: torch.ones(1, 3).expand(5, 3),
    "row of a matrix": lambda: torch.arange(2000.0).reshape(20, 100)[7],
    "column of a matrix": lambda: torch.arange(2000.0).reshape(20, 100)[:, 7],
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.randn(3), requires_grad=False),
    "leaf with grad": lambda: torch.randn(3, requires_grad=True),
    "computed": lambda: torch.randn(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_comes_back_bit_for_bit(name: str) -> None:
    """Values, dtype, shape, kind and whether it is trained are kept, whatever the tensor is a view of."""
    value = CASES[name]()
    back = through({"a": value})["a"]
    assert state_sha256(back) == state_sha256(value)
    assert type(back) is type(value)
    assert back.requires_grad == (value.requires_grad and value.is_leaf)
    if name in ("transposed", "channels last", "expanded"):
        assert back.stride() == value.stride()


@pytest.mark.parametrize("name", ["row of a matrix", "column of a matrix", "strided", "expanded"])
def test_a_view_is_saved_without_the_rest_of_its_storage(name: str) -> None:
    """The file of a view holds its elements and not the storage around them."""
    value = CASES[name]()
    (data,) = files(take_out({"a": value}))
    stored = load_pt(data)["a"].untyped_storage().nbytes()
    assert stored <= value.numel() * value.element_size()


def test_tied_tensors_come_back_tied() -> None:
    """Two names of one weight share storage after the round trip, and stay in one shard under both names."""
    model = torch.nn.Sequential(torch.nn.Linear(50, 50, bias=False), torch.nn.Linear(50, 50, bias=False))
    model[1].weight = model[0].weight
    taken = take_out(
        {"parts": {"model": model.state_dict(), "other": torch.randn(50, 50)}}, max_shard_bytes=1
    )
    contents = [load_pt(data) for data in files(taken)]
    assert sorted(map(sorted, contents)) == [["model/0.weight", "model/1.weight"], ["other"]]
    state = put_back(taken.skeleton, contents)["parts"]["model"]
    assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()
    state["0.weight"][0, 0] = 7
    assert state["1.weight"][0, 0] == 7


def test_overlapping_views_still_overlap() -> None:
    """Views of different shape on common memory stay views of one storage, of no more than they span."""
    base = torch.arange(1000.0)
    back = through({"a": base[10:20], "b": base[15:30], "far": base[900:910]})
    back["a"][5] = -1
    assert back["b"][0] == -1
    assert back["a"].untyped_storage().data_ptr() == back["b"].untyped_storage().data_ptr()
    assert back["a"].untyped_storage().nbytes() == 20 * 4
    assert back["far"].untyped_storage().nbytes() == 10 * 4


def test_one_memory_seen_as_two_types_is_saved() -> None:
    """Views of one storage as two dtypes, which torch.save refuses together, are saved by value."""
    bits = torch.arange(8, dtype=torch.int32)
    back = through({"a": bits, "b": bits.view(torch.float32)})
    assert torch.equal(back["a"], bits)
    assert torch.equal(back["b"].view(torch.int32), bits)


def test_tied_tensors_may_differ_in_whether_they_are_trained() -> None:
    """requires_grad belongs to each name of a tied tensor, not to the memory."""
    weight = torch.randn(3)
    back = through({"a": weight, "b": weight.detach().requires_grad_(True)})
    assert (back["a"].requires_grad, back["b"].requires_grad) == (False, True)
    assert back["a"].data_ptr() == back["b"].data_ptr()


def test_live_tensors_are_left_alone() -> None:
    """Taking out and writing changes no tensor of the tree, and restored ones share nothing with it."""
    weight = torch.nn.Parameter(torch.ones(4))
    back = through({"a": weight})["a"]
    with torch.no_grad():
        weight.add_(1)
    assert back.tolist() == [1, 1, 1, 1]
    assert weight.requires_grad


def test_shards_are_plain_files_of_path_to_tensor() -> None:
    """Each shard loads alone with torch.load(weights_only=True) as a dict of dotted paths."""
    model = torch.nn.Linear(100, 100)
    taken = take_out({"parts": {"model": model.state_dict()}, "extra": {"t": torch.ones(1)}})
    found: dict[str, torch.Tensor] = {}
    for data in files(taken):
        found.update(torch.load(io.BytesIO(data), weights_only=True))
    assert sorted(found) == ["extra/t", "model/bias", "model/weight"]
    assert torch.equal(found["model/weight"], model.weight)


def test_names_that_meet_are_told_apart() -> None:
    """Two tensors whose paths read the same both come back."""
    back = through({"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}})
    assert (back["a/b"].item(), back["a"]["b"].item()) == (1, 0)


def test_inline_entries_keep_their_tensors() -> None:
    """What is named inline stays in the skeleton."""
    taken = take_out({"rng": {"torch": torch.ones(2)}, "parts": {}}, inline=("rng",))
    assert torch.equal(taken.skeleton["rng"]["torch"], torch.ones(2))


def test_a_state_that_is_not_tiny_has_several_shards() -> None:
    """More than one shard is the rule, so that it is not the untried case."""
    tree = {f"w{n}": torch.zeros(SPLIT_FROM_BYTES // 4) for n in range(3)}
    assert len(take_out(tree).shards) == 2
    assert len(take_out({"w": torch.zeros(3)}).shards) == 1


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 20_000))
def test_bins_hold_every_item_once_and_respect_the_limit(sizes: list[int], limit: int) -> None:
    """No bin exceeds the limit unless one item alone does, and every item is in exactly one bin."""
    bins = by_size(sizes, limit)
    assert sorted(index for members in bins for index in members) == list(range(len(sizes)))
    assert all(len(members) == 1 or sum(sizes[i] for i in members) <= limit for members in bins if members)


def test_bins_are_about_equal() -> None:
    """Many items of like size are spread evenly."""
    bins = by_size([100] * 1000, 30_000)
    loads = [len(members) * 100 for members in bins]
    assert max(loads) - min(loads) <= 100
    assert len(bins) == 4


@pytest.mark.parametrize(
    "reference",
    [
        {"shard": 5, "key": "a"},
        {"shard": -1, "key": "a"},
        {"shard": True, "key": "a"},
        {"shard": "0", "key": "a"},
        {"shard": 0, "key": "b"},
        {"shard": 0, "key": None},
        {"shard": 0, "key": "text"},
        {},
    ],
    ids=repr,
)
def test_a_reference_to_nothing_is_a_value_error(reference: dict[str, Any]) -> None:
    """References that the shards do not answer raise ValueError."""
    skeleton = {"x": {"__outlast__": "tensor", **reference}}
    with pytest.raises(ValueError):
        put_back(skeleton, [{"a": torch.ones(1), "text": "no tensor"}])


def test_streaming_holds_no_more_than_a_few_pieces() -> None:
    """The bytes come in bounded pieces, and are those that torch.save writes."""
    content = {"a": torch.arange(6_000_000.0), "b": "x"}
    pieces = list(stream(content))
    assert max(map(len, pieces)) <= 8 << 20
    assert torch.equal(load_pt(b"".join(pieces))["a"], content["a"])


def test_an_abandoned_stream_leaves_no_thread() -> None:
    """A reader that stops in the middle ends the serializing thread."""
    before = threading.active_count()
    source = stream({"a": torch.zeros(30_000_000)})
    next(source)
    source.close()
    assert threading.active_count() == before


def test_a_failure_to_serialize_reaches_the_reader() -> None:
    """What torch.save raises is raised where the bytes are read."""
    with pytest.raises((AttributeError, TypeError, Exception), match=r"[Pp]ickle|lambda"):
        list(stream({"a": lambda: 1}))


@pytest.mark.parametrize("version", ["2.5.1", "2.5.1+cu121", "1.13.0", "0.4", "2.5.0a0+git"])
def test_old_torch_is_refused_with_the_reason(version: str) -> None:
    """Before 2.6 weights_only=True runs code that a crafted file brings."""
    with pytest.raises(UnsafeTorch, match=r"before 2\.6 a crafted file runs code"):
        require_safe_loader(version)


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cpu", "2.13.0", "3.0.0a0"])
def test_new_torch_is_taken(version: str) -> None:
    """From 2.6 on the safe loader is used."""
    require_safe_loader(version)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_tensors_are_copied_to_the_host() -> None:
    """Tensors of a device load without one, with their values and ties."""
    base = torch.arange(10.0, device="cuda")
    back = through({"a": base, "b": base, "c": base[2:4]})
    assert back["a"].device.type == "cpu"
    assert torch.equal(back["c"], torch.tensor([2.0, 3.0]))
    assert back["a"].untyped_storage().data_ptr() == back["b"].untyped_storage().data_ptr()
