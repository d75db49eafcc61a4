"""A whole run in shards: each strategy puts every tensor somewhere, and no mismatch gets past the index."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.worker.reference_net import Small
from torch import nn

from outlast_jobs import durable
from outlast_jobs.claim import claim
from outlast_jobs.errors import AlreadySealed, Corrupt, Incomplete, IntegrityError, UnsafeName
from outlast_jobs.generation import INDEX, INDEX_DIGEST, META, GenerationName, digest_line
from outlast_jobs.verify import Verdict, look
from outlast_worker import (
    TrainState,
    capture_rng_state,
    load_sharded_checkpoint,
    save_sharded_checkpoint,
)
from outlast_worker.digest import first_difference
from outlast_worker.parts import Parts
from outlast_worker.sameness import AnotherIdentity
from outlast_worker.saving import IndexFields, save_generation
from outlast_worker.sharding import Strategy

pytestmark = pytest.mark.usefixtures("own_streams")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "step-000000003.a0001"


def save(run: Small, folder: Path, **options: Any) -> None:
    save_sharded_checkpoint(*run.four, folder, parts={"noise": run.noise}, **options)


def load(run: Small, folder: Path, **options: Any) -> TrainState:
    return load_sharded_checkpoint(folder, *run.three, parts={"noise": run.noise}, **options)


def reindex(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the index, and leave its digest right."""
    index = json.loads((folder / INDEX).read_text())
    change(index)
    data = json.dumps(index).encode()
    (folder / INDEX).write_bytes(data)
    (folder / INDEX_DIGEST).write_bytes(digest_line(data))


def shards(folder: Path) -> list[set[str]]:
    """The keys in each shard, in order."""
    paths = sorted(folder.glob("model.shard-*.pt"))
    return [set(torch.load(path, weights_only=True)) for path in paths]


@pytest.mark.parametrize(
    ("strategy", "count"),
    [("round_robin", None), ("round_robin", 3), ("size", 4), ("suffix", None), ("groups", None)],
)
def test_a_resumed_run_is_the_run(folder: Path, strategy: Strategy, count: int | None) -> None:
    """However it was sharded, a checkpoint makes another run go on with the same losses, bit for bit."""
    first = Small(seed=1)
    save(first, folder, strategy=strategy, num_shards=count)
    expected = first.train(4)
    second = Small(seed=2)
    second.state = load(second, folder)
    assert second.state.losses == first.state.losses[:3]
    assert second.train(4) == expected
    keys = [key for shard in shards(folder) for key in shard]
    assert len(keys) == len(set(keys)) == 4 + 3 * 4  # four parameters; step and two moments of each
    index = json.loads((folder / INDEX).read_text())
    assert index["extra"]["num_shards"] == len(shards(folder)) == (count or 2)
    for name, entry in index["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
    assert look(folder, None, full=True).verdict is Verdict.VERIFIED


def test_round_robin_goes_in_turn(folder: Path) -> None:
    """Round robin differs by one tensor at most, whatever the sizes."""
    save(Small(), folder, num_shards=3)
    assert sorted(map(len, shards(folder))) == [5, 5, 6]


def test_suffix_puts_moments_beside_their_parameters(folder: Path) -> None:
    """By suffix, weights with their moments are in one shard and biases with theirs in the other."""
    run = Small()
    save(run, folder, strategy="suffix")
    weights, biases = shards(folder)
    assert {key for key in weights if key.startswith("model/")} == {"model/0.weight", "model/2.weight"}
    assert {key for key in biases if key.startswith("model/")} == {"model/0.bias", "model/2.bias"}
    assert len(weights) == len(biases) == 8
    assert list(json.loads((folder / INDEX).read_text())["extra"]["shards"].values()) == ["weights", "biases"]


def test_groups_follow_the_optimizer_and_the_rest_lies_apart(tmp_path: Path) -> None:
    """By groups, what the optimizer doesn't train, frozen layers and buffers, has a shard of its own."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    groups = [{"params": net[2].parameters()}, {"params": net[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    save_sharded_checkpoint(net, optimizer, None, TrainState(), tmp_path / "a", strategy="groups")
    head, norm, rest = shards(tmp_path / "a")
    assert {key for key in head if key.startswith("model")} == {"model/2.weight", "model/2.bias"}
    assert {key for key in norm if key.startswith("model")} == {"model/1.weight", "model/1.bias"}
    assert {"model/0.weight", "model/0.bias", "model/1.running_mean"} <= rest
    assert not any("momentum" in key for key in rest)


def test_size_bounds_the_largest_shard(tmp_path: Path) -> None:
    """By size, the largest shard has little more than its share, where round robin is far off."""
    net = nn.ParameterList([torch.zeros(n) for n in (4000, 10, 4000, 10, 4000, 10, 4000, 10)])
    for strategy in ("size", "round_robin"):
        save_sharded_checkpoint(
            net, None, None, TrainState(), tmp_path / strategy, num_shards=2, strategy=strategy
        )  # type: ignore[arg-type]

    def largest(name: str) -> int:
        return max(path.stat().st_size for path in (tmp_path / name).glob("model.shard-*"))

    assert largest("size") < 0.6 * largest("round_robin")


def test_tied_weights_stay_in_one_shard_and_load_tied(folder: Path) -> None:
    """Tensors that share memory are never torn apart by a strategy."""
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    save_sharded_checkpoint(net, None, None, TrainState(3), folder, num_shards=2)
    assert [len(shard) for shard in shards(folder)] == [2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "suffix", "num_shards": 2}, "leave num_shards out"),
        ({"strategy": "groups", "num_shards": 2}, "leave num_shards out"),
        ({"num_shards": 0}, "0 shards"),
        ({"strategy": "alphabet"}, "no strategy 'alphabet'"),
    ],
)
def test_a_wrong_request_says_what_there_is(folder: Path, options: dict[str, Any], words: str) -> None:
    """A strategy that isn't one, or a number that is not to be given, is refused and nothing is written."""
    with pytest.raises(ValueError, match=words):
        save(Small(), folder, **options)
    assert os.listdir(folder.parent) == []


def test_groups_need_an_optimizer(folder: Path) -> None:
    """Without an optimizer there are no groups to go by."""
    with pytest.raises(ValueError, match="no optimizer"):
        save_sharded_checkpoint(nn.Linear(1, 1), None, None, TrainState(3), folder, strategy="groups")


def test_a_checkpoint_is_never_overwritten(folder: Path) -> None:
    """A folder that holds anything is refused and left as it is; an empty one is taken."""
    folder.mkdir()
    save(Small(), folder)
    before = sorted(os.listdir(folder))
    with pytest.raises(AlreadySealed, match="never overwritten"):
        save(Small(), folder)
    file = folder.with_name("file")
    file.write_text("x")
    with pytest.raises(AlreadySealed):
        save(Small(), file)
    assert sorted(os.listdir(folder)) == before
    assert sorted(os.listdir(folder.parent)) == ["file", folder.name]
    with pytest.raises(ValueError, match="the state is of step 4, but the folder is called"):
        save(Small(steps=4), folder)


@pytest.mark.parametrize("number", range(1, 6))  # two shards, meta.pt, the index and its digest
def test_a_failed_save_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """When any write fails, neither the folder nor a leftover is there."""
    original, left = durable.write_file, number

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(durable, "write_file", failing)
    with pytest.raises(OSError, match="No space"):
        save(Small(), folder)
    assert os.listdir(folder.parent) == []


@pytest.mark.parametrize("name", [META, "model.shard-000.pt", "model.shard-001.pt", INDEX])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "link"])
def test_any_mismatch_fails_before_anything_is_merged(folder: Path, name: str, damage: str) -> None:
    """A file that is changed, cut, missing or a link is refused, and the run that would load stays as it was."""
    save(Small(), folder)
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-1])
    else:
        path.rename(folder.parent / "elsewhere")
        if damage == "link":
            path.symlink_to("../elsewhere")
    run = Small(seed=2)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}, capture_rng_state()
    with pytest.raises(Incomplete if damage == "missing" else Corrupt, match=name.replace(".", r"\.")):
        load(run, folder)
    assert first_difference(before, (dict(run.net.state_dict()), capture_rng_state())) is None


@pytest.mark.parametrize(
    "name", ["../outside.pt", "/tmp/outside.pt", "sub/shard.pt", "..", ".hidden.pt", "a\0b", ""]
)
def test_a_shard_outside_of_the_folder_is_refused(folder: Path, name: str) -> None:
    """A name in the index that leads out of the folder is refused, though all digests are right."""
    save(Small(), folder)
    outside = folder.parent / "outside.pt"
    (folder / "model.shard-000.pt").rename(outside)

    def point_outside(index: dict[str, Any]) -> None:
        index["files"][name] = index["files"].pop("model.shard-000.pt")

    reindex(folder, point_outside)
    with pytest.raises(IntegrityError, match="unsafe file name") as caught:
        load(Small(), folder)
    assert type(caught.value) in (UnsafeName, Corrupt)


def test_meta_cannot_point_outside_either(folder: Path) -> None:
    """A shard list in the meta file that names what the index doesn't is refused."""
    save(Small(), folder)
    meta = torch.load(folder / META, weights_only=True)
    meta["shards"][0] = "../outside.pt"
    torch.save(meta, folder / META)
    data = (folder / META).read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reindex(folder, lambda index: index["files"].update({META: entry}))
    with pytest.raises(UnsafeName, match="leads out of the folder"):
        load(Small(), folder)


def test_other_code_is_refused(folder: Path) -> None:
    """Code and data that were recorded are held against what is given, as for a single file."""
    save(Small(), folder, code={"sha256": "aa"}, data={"rows": 3})
    assert load(Small(), folder, code={"sha256": "aa"}, data={"rows": 3}, identity="strict").step == 3
    with pytest.raises(AnotherIdentity, match="is of other code"):
        load(Small(), folder, code={"sha256": "bb"})


def test_what_is_not_finite_is_recorded_as_unhealthy(folder: Path) -> None:
    """A checkpoint whose loss or weights are not finite says so in its index."""
    run = Small()
    run.state.losses[-1] = float("inf")
    save(run, folder)
    assert json.loads((folder / INDEX).read_text())["healthy"] is False


def test_a_generation_of_a_run_loads_too(tmp_path: Path) -> None:
    """What a Checkpointer sealed under a supervisor is loaded by the same function, given its parts."""
    run = Small()
    trees, kinds = Parts(
        {"model": run.net, "optimizer": run.optimizer, "scheduler": run.scheduler, "noise": run.noise}
    ).capture()
    state = {
        "schema": "outlast.meta/1",
        "parts": trees,
        "kinds": kinds,
        "counters": {"step": 3, "epoch": 1, "batch_in_epoch": 2},
        "losses": [[2, 0.5], [3, 0.25]],
        "rng": capture_rng_state(),
        "extra": {"best": 1},
    }
    claim(tmp_path, 4)
    saved = save_generation(tmp_path, GenerationName(3, 4), state, run_id="r", fields=IndexFields())
    expected = run.train(2)
    other = Small(seed=2)
    found = load(other, saved.path)
    assert found == TrainState(3, 1, 2, [0.5, 0.25], {"best": 1})
    assert other.train(2) == expected
