"""Batches: the same samples in the same order with the same draws, however often the run is cut."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.batching import LENGTH, PER_EPOCH, SCRIPTS, SIZE, Noisy, collate, ids, made, streams, take
from torch.utils.data import (
    Dataset,
)

from outlast_worker.batches import Batches, DataChanged, batches


def resumed(state: dict[str, Any], **options: Any) -> Batches:
    data = made(**options)
    data.load_state_dict(json.loads(json.dumps(state)))
    return data


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("cuts", [[2, 4, 5], [8, 9, 16], [6, 12], [1, 6, 7, 15]])
def test_cuts(workers: int, shuffle: bool, cuts: list[int]) -> None:
    """Cut several times in one epoch, in later ones and between them, a run sees exactly the same batches."""
    whole = take(made(shuffle=shuffle), 3 * PER_EPOCH)
    pieces: list[Any] = []
    data = made(workers=workers, shuffle=shuffle, start_method="fork")
    for begin, end in zip([0, *cuts], [*cuts, 3 * PER_EPOCH], strict=True):
        pieces += take(data, end - begin)
        state = data.state_dict()
        data.close()
        data = resumed(state, workers=workers, shuffle=shuffle, start_method="fork")
    assert pieces == whole


@pytest.mark.parametrize(("method", "cuts"), [("fork", "3,8,14"), ("spawn", "8"), ("forkserver", "3,8,14")])
def test_cuts_under_each_start_method(method: str, cuts: str) -> None:
    """Loader processes of each kind give what the trainer itself would load, and draw nothing of its own."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / "loader_cuts.py", method, cuts, str(3 * PER_EPOCH)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # on a slow machine Python's own tracker may miss that a semaphore is gone, and warns of it
    said = [line for line in done.stderr.splitlines() if "resource_tracker" not in line]
    assert (done.returncode, said) == (0, [])
    found = json.loads(done.stdout)
    assert found["pieces"] == found["whole"]
    assert found["undisturbed"]


@pytest.mark.parametrize("cut", range(1, 3 * PER_EPOCH))
def test_each_sample_once_an_epoch(cut: int) -> None:
    """Wherever it is cut, each epoch hands out each sample once, and no two epochs in the same order."""
    data = made()
    first = take(data, cut)
    both = first + take(resumed(data.state_dict()), 3 * PER_EPOCH - cut)
    flat = [index for batch in ids(both) for index in batch]
    epochs = [flat[start : start + LENGTH] for start in range(0, 3 * LENGTH, LENGTH)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(LENGTH))] * 3
    assert len(set(map(tuple, epochs))) == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_accumulation(workers: int, steps: int) -> None:
    """With four batches a step, across the ends of epochs, a cut loses the half step and repeats it whole."""
    whole = take(made(), 24, accumulate=4)
    data = made(workers=workers, start_method="fork")
    take(data, 4 * steps + 2, accumulate=4)
    state = data.state_dict()
    data.close()
    again = resumed(state, workers=workers, start_method="fork")
    assert take(again, 24 - 4 * steps, accumulate=4) == whole[4 * steps :]
    again.close()


def test_position_counts_what_was_consumed() -> None:
    """The position does not move when batches are fetched ahead or handed out, only at a boundary."""
    data = made(workers=2, prefetch=3, start_method="fork")
    iterator = iter(data)
    next(iterator), next(iterator), next(iterator)
    assert (data.position, data.batch_in_epoch) == (0, 0)
    data.consumed(2)
    assert (data.epoch, data.position, data.batch_in_epoch) == (0, 8, 2)
    data.consumed()
    assert data.position == 12
    with pytest.raises(ValueError, match="can't commit 1 batches: 0 were handed out"):
        data.consumed(1)
    data.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_of_the_process_are_left_alone(workers: int) -> None:
    """Neither making an iterator, nor drawing, nor a new epoch, nor closing moves a process-wide stream."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    random.gauss(0, 1), np.random.randn(), torch.randn(1)  # each holds half a pair back
    before = streams()
    data = made(workers=workers, start_method="fork")
    for step in (lambda: iter(data), lambda: take(data, 1), lambda: take(data, 2 * PER_EPOCH), data.close):
        step()
        assert streams() == before


def test_streams_survive_a_failing_sample() -> None:
    """A dataset that raises leaves the process-wide streams as they were, and its own exception comes out."""

    class Failing(Noisy):
        def __getitem__(self, index: int) -> Any:
            random.random()
            raise (StopIteration if index == 1 else LookupError)("sample")

    before = streams()
    with pytest.raises(LookupError):
        next(iter(batches(Failing(1), 1)))
    with pytest.raises(RuntimeError, match="the dataset raised StopIteration"):
        take(batches(Failing(2), 1, sampler=lambda epoch: [1]), 1)
    assert streams() == before


def test_draws_differ_between_samples_and_epochs() -> None:
    """No two samples, and no sample in two epochs, share a draw: not even those of two loader processes."""
    data = made(length=48, workers=2, start_method="fork", collate_fn=list)
    rows = [row for _, batch in take(data, 24) for row in batch]
    data.close()
    assert len(rows) == 96
    for stream in (1, 2, 3):
        assert len({row[stream] for row in rows}) == 96


def test_draws_belong_to_the_sample() -> None:
    """A sample draws the same whatever came before it in its batch: order and batch size do not matter."""
    one = {row[0]: row for _, batch in take(made(collate_fn=list), PER_EPOCH) for row in batch}
    other = made(collate_fn=list, size=7, shuffle=False)
    assert one == {row[0]: row for _, batch in take(other, 4) for row in batch}


def test_draws_of_the_collate_function() -> None:
    """What the collate function draws hangs on the batch, not on how much its samples drew before."""

    class Quiet(Noisy):
        def __getitem__(self, index: int) -> Any:
            return (index,)

    loud = take(made(), 3)
    quiet = take(batches(Quiet(LENGTH), SIZE, seed=5, collate_fn=collate), 3)
    assert [batch[-1] for _, batch in loud] == [batch[-1] for _, batch in quiet]


def test_loader_processes_live_on() -> None:
    """A new epoch, a rewind and a jump are served by the loader processes that are there."""
    data = batches(Pids(), 4, workers=2, start_method="fork")
    found = {int(pid) for _ in range(3) for batch in data for pid in batch}
    next(iter(data))
    data.set_epoch(7)
    found |= {int(pid) for batch in data for pid in batch}
    data.close()
    assert len(found) == 2


class Pids(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        import os

        return os.getpid()


@pytest.mark.parametrize("workers", [0, 2])
def test_left_in_the_middle(workers: int) -> None:
    """An iteration left in the middle is taken up behind the last boundary, and the older one is over."""
    whole = ids(take(made(), 2 * PER_EPOCH))
    data = made(workers=workers, start_method="fork")
    first = iter(data)
    next(first)
    data.consumed()
    next(first), next(first)
    assert ids(take(data, 8)) == whole[1:9]
    with pytest.raises(RuntimeError, match="ended when another was begun"):
        next(first)
    data.close()


def test_without_boundaries() -> None:
    """In a plain loop, where nobody commits, each loop is an epoch, and one that was left is begun again."""
    whole = ids(take(made(), 2 * PER_EPOCH))
    data = made()
    assert [list(data.last_ids) for _ in data] == whole[:PER_EPOCH]
    for _ in data:
        break
    assert [list(data.last_ids) for _ in data] == whole[PER_EPOCH:]


@pytest.mark.parametrize("workers", [0, 2])
def test_state_loaded_while_iterating(workers: int) -> None:
    """A state that is loaded over batches fetched ahead replaces them, its seed included."""
    state = {**made(seed=9).state_dict(), "position": 8, "batch": 2}
    whole = take(made(seed=9), PER_EPOCH)
    data = made(workers=workers, start_method="fork")
    take(data, 2)
    data.load_state_dict(state)
    assert take(data, 4) == whole[2:]
    data.close()


def test_resumed_at_the_end_of_an_epoch() -> None:
    """At the end of an epoch the rest of it is empty, and the next iteration is the next epoch."""
    data = made()
    whole = take(data, PER_EPOCH + 1)
    data = made()
    take(data, PER_EPOCH)
    assert (data.epoch, data.position, data.batch_in_epoch) == (0, LENGTH, PER_EPOCH)
    again = resumed(data.state_dict())
    assert list(again) == []
    next(iter(again))
    assert list(again.last_ids) == whole[-1][0]
    again.consumed()
    assert (again.epoch, again.position, again.batch_in_epoch) == (1, SIZE, 1)


def test_changed_batch_size() -> None:
    """A changed batch size goes on at the same sample, each still seen once, and is said as drift."""
    data = made()
    before = take(data, 3)
    again = resumed(data.state_dict(), size=8)
    after = take(again, 2)
    assert sorted(index for batch in ids(before + after) for index in batch) == list(range(LENGTH))
    assert again.drift == (
        "batch size 4 → 8: the position, kept in samples, is still valid; bit-exact is not expected",
    )


def test_changed_length() -> None:
    """A dataset of another length is refused, with both lengths named."""
    state = made().state_dict()
    with pytest.raises(DataChanged, match="dataset of 22 samples, this one has 23"):
        made(length=23).load_state_dict(state)


def test_changed_shuffle() -> None:
    """Shuffling can be switched between epochs, not in the middle of one: samples would be seen twice."""
    data = made()
    start = data.state_dict()
    take(data, 1)
    with pytest.raises(DataChanged, match=r"in the middle of epoch 0: it was begun with shuffle=True"):
        made(shuffle=False).load_state_dict(data.state_dict())
    again = resumed(start, shuffle=False)
    assert again.drift == ("shuffle True → False: other order from epoch 0 on",)


def test_changed_seed() -> None:
    """The order goes on with the checkpoint's seed, and another one in the script is said as drift."""
    whole = take(made(), PER_EPOCH)
    data = made()
    take(data, 2)
    again = resumed(data.state_dict(), seed=6)
    assert take(again, 4) == whole[2:]
    assert again.drift == ("seed 6 is not used: the order goes on with the checkpoint's, 5",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": "outlast.batches/9"},
            'schema "outlast.batches/9", this version reads "outlast.batches/1"',
        ),
        ({"epoch": "0"}, 'no valid "epoch" \\(int expected\\)'),
        ({"shuffle": 1}, 'no valid "shuffle" \\(bool expected\\)'),
        ({"position": -4}, "negative position"),
    ],
)
def test_bad_state(change: dict[str, Any], message: str) -> None:
    """A state that is not one of ours is refused by name."""
    with pytest.raises(DataChanged, match=message):
        made().load_state_dict({**made().state_dict(), **change})


def test_drop_last() -> None:
    """With drop_last each epoch hands out whole batches only; a dataset without one is refused at once."""
    data = made(drop_last=True)
    assert len(data) == 5
    assert all(len(batch) == SIZE for batch in ids(take(data, 11)))
    assert (data.epoch, data.batch_in_epoch) == (2, 1)
    with pytest.raises(
        ValueError, match="epoch 0 has 3 samples and so not one batch, since drop_last is set"
    ):
        made(length=3, drop_last=True)
    with pytest.raises(ValueError, match="epoch 0 has 0 samples"):
        made(length=0)


def test_custom_order() -> None:
    """An order given as a function of the epoch is cut and resumed like any other."""

    def order(epoch: int) -> list[int]:
        return [epoch, 3, 1, 4, 1, 5, 9]

    data = made(sampler=order)
    assert ids(take(data, 3)) == [[0, 3, 1, 4], [1, 5, 9], [1, 3, 1, 4]]
    assert ids(take(resumed(data.state_dict(), sampler=order), 1)) == [[1, 5, 9]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "batch_size is 0; it must be at least 1"),
        ({"workers": -1}, "workers is -1"),
        ({"prefetch": 0}, "prefetch is 0"),
    ],
)
def test_bad_arguments(wrong: dict[str, int], message: str) -> None:
    """A number that makes no sense is refused when the loader is made."""
    with pytest.raises(ValueError, match=message):
        made(**wrong)


def test_identity() -> None:
    """What the data is, for the index, holds the dataset's own word for itself."""

    class Named(Noisy):
        identity = "sha256:12"

    found = batches(Named(LENGTH), SIZE).identity()
    assert (found["identity"], found["length"], found["batch_size"]) == ("sha256:12", LENGTH, SIZE)
    assert "identity" not in made().identity()


def test_dropped_without_a_cycle() -> None:
    """A loader left in the middle of an iteration goes at once when it is dropped, without the collector."""
    gc.disable()
    try:
        data = made()
        next(iter(data))
        gone = weakref.ref(data)
        del data
        assert gone() is None
    finally:
        gc.enable()
