"""Shards that do not change are linked: the same bytes, every other time the same file, and any doubt writes them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast_jobs.blocks import Image
from outlast_jobs.claim import claim
from outlast_jobs.generation import FileEntry, GenerationName
from outlast_jobs.look import Verdict, look
from outlast_jobs.sealer import Sealer
from outlast_worker.again import Again
from outlast_worker.linking import Links
from outlast_worker.restoring import digest_generation
from outlast_worker.saving import IndexFields, save_generation, take_state
from outlast_worker.sources import Sources


def _state(**parts: Any) -> dict[str, Any]:
    counters = {"step": 1, "epoch": 0, "batch_in_epoch": 1}
    more = {"kinds": dict.fromkeys(parts, "stateful"), "losses": [], "rng": {}, "extra": {}}
    return {"schema": "outlast.meta/1", "parts": parts, "counters": counters, **more}


class Run:
    """Saves of one attempt: a frozen base, and what is trained beside it."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / "run" / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        claim(self.checkpoints, 1)
        base = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
        self.net = torch.nn.Sequential(base.requires_grad_(False), torch.nn.Linear(40, 8))
        self.base = base
        self.links = Links()
        self.saved: list[Path] = []
        self.digests: dict[Path, str] = {}

    def save(self) -> list[int]:
        """The inodes of the base's shards."""
        with torch.no_grad():
            self.net[1].weight.add_(1)
        frozen = Sources([], [self.net], lambda: None).frozen()
        state = _state(model=self.net.state_dict())
        step = state["counters"]["step"] = len(self.saved) + 1
        saved = save_generation(
            self.checkpoints,
            GenerationName(step, 1),
            state,
            run_id="r",
            fields=IndexFields(),
            links=self.links,
            apart=frozen,
        )
        self.saved.append(saved.path)
        self.digests[saved.path] = digest_generation(saved.path)
        return [found.st_ino for found in self.files(saved.path)]

    def files(self, path: Path) -> list[os.stat_result]:
        return [(path / f"model.shard-{n:03d}.pt").stat() for n in range(2)]

    def whole(self) -> None:
        """All are as they were saved."""
        for path in self.saved:
            assert look(path, "r", full=True).verdict is Verdict.VERIFIED
            assert digest_generation(path) == self.digests[path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_shards_that_stay_the_same_are_two_files_in_turn(run: Run) -> None:
    """The first two saves write them, each later one links those of the save before the last; what is trained is
    written each time."""
    inodes = [run.save() for _ in range(6)]
    assert inodes[0] == inodes[2] == inodes[4]
    assert inodes[1] == inodes[3] == inodes[5]
    assert not set(inodes[0]) & set(inodes[1])
    others = [path.joinpath("model.shard-002.pt").stat().st_ino for path in run.saved]
    assert len(set(others)) == 6
    run.whole()


def test_a_frozen_tensor_shares_no_shard_with_a_trained_one(run: Run) -> None:
    """By what is trained alone, in the same order each time; without links nothing is told apart."""
    frozen = Sources([], [run.net], lambda: None).frozen()
    taken = take_state(_state(model=run.net.state_dict()), apart=frozen)
    keys = [{member.key for c in shard for member in c.members} for shard in taken.shards]
    assert len(keys) == 3
    assert all(key.startswith("model/0.") for shard in keys[:2] for key in shard)
    assert keys[2] == {"model/1.weight", "model/1.bias"}
    assert len(take_state(_state(model=run.net.state_dict())).shards) == 2
    assert len(take_state(_state(none=[]), apart=frozen).shards) == 1


def test_what_is_frozen_later_goes_apart_from_then_on(run: Run) -> None:
    """A plan is made along the one before only while the same is trained."""
    again = Again()

    def shards() -> list[set[str]]:
        frozen = frozenset(Sources([], [run.net], lambda: None).frozen())
        plan = again.plan(_state(model=run.net.state_dict()), frozen)
        return [{member.key for c in shard for member in c.members} for shard in plan.taken.shards]

    first = shards()
    assert shards() == first
    run.base[0].requires_grad_(True)
    second = shards()
    trained = {key for shard in second for key in shard if key.startswith(("model/0.0.", "model/1."))}
    assert len(trained) == 4
    assert all(shard <= trained or not shard & trained for shard in second)


@pytest.mark.parametrize("how", ["data", "numpy", "bit"])
def test_what_changed_unseen_is_written(run: Run, how: str) -> None:
    """Nothing but the digest tells that bytes are the same: through .data, numpy, or one bit of one element."""
    before = [run.save() for _ in range(3)]
    match how:
        case "data":
            run.base[0].weight.data.mul_(1.5)
        case "numpy":
            run.base[1].weight.detach().numpy()[3, 4] += 1
        case _:
            run.base[2].weight.detach().numpy().view("i4")[0, 0] ^= 1
    after = [run.save() for _ in range(4)]
    written = set(before[1]) ^ set(after[0])
    assert written
    assert all(len(set(a) & set(b)) == 0 for a, b in itertools.pairwise(after))
    assert after[2:] == after[:2]
    run.whole()


@pytest.mark.parametrize("what", ["newest gone", "older gone", "newest written to", "older replaced"])
def test_with_less_than_two_good_copies_another_is_written(run: Run, what: str) -> None:
    """Set aside, deleted, touched or replaced: what is there no longer as it was written counts as no copy."""
    for _ in range(3):
        run.save()
    path = run.saved[-1 if what.startswith("newest") else -2]
    old = {found.st_ino for saved in run.saved for found in run.files(saved)}
    shards = [path / f"model.shard-{n:03d}.pt" for n in range(2)]
    if what.endswith("gone"):
        path.rename(path.with_name(f"{path.name}.corrupt-1"))
    for shard in shards if what.endswith("to") else ():
        os.utime(shard, ns=(0, 0))
    with contextlib.ExitStack() as held:
        for shard in shards if what.endswith("replaced") else ():
            content = held.enter_context(
                shard.open("rb")
            ).read()  # open, so that no other file gets its inode
            shard.unlink()
            shard.write_bytes(content)
        assert not set(run.save()) & old


def test_without_links_on_this_disk_all_is_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hard links, or too many of one file: saves go on as if nobody had asked for links."""

    def fails(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EMLINK, "too many links")

    monkeypatch.setattr(os, "link", fails)
    inodes = [run.save() for _ in range(4)]
    assert len({n for found in inodes for n in found}) == 8
    run.whole()


def test_what_is_trained_is_hashed_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was the same twice is hashed before it is known whether it must be written."""
    hashed: list[int] = []
    real = Sealer.hashed

    def watched(self: Sealer, image: Image) -> FileEntry:
        hashed.append(image.size)
        return real(self, image)

    monkeypatch.setattr(Sealer, "hashed", watched)
    for _ in range(4):
        run.save()
    assert len(hashed) == 4  # two shards, in the third save and the fourth
    assert run.saved[-1].joinpath("model.shard-002.pt").stat().st_size not in hashed


def test_a_nan_is_told_of_what_is_linked_as_well(run: Run) -> None:
    """Linked or written, a generation that holds one is not healthy."""
    with torch.no_grad():
        run.base[0].bias[3] = float("nan")
    inodes = [run.save() for _ in range(4)]
    assert inodes[3] == inodes[1]
    found = [look(path, "r", full=False).index for path in run.saved]
    assert [index is not None and index.healthy for index in found] == [False] * 4
