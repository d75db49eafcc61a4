"""Loaders of other makes: a plain DataLoader is rewrapped, what has state is taken as it is, the rest refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.worker.batching import LENGTH, SIZE, Noisy, collate, ids, made, streams, take
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from outlast_worker.batches import NotResumable, as_batches, batches


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_plain_loader(workers: int, shuffle: bool) -> None:
    """A plain DataLoader becomes a resumable one with its settings, and no stream is drawn from for it."""

    def loader() -> DataLoader[Any]:
        return DataLoader(
            Noisy(LENGTH),  # type: ignore[arg-type]
            SIZE,
            shuffle=shuffle,
            drop_last=True,
            num_workers=workers,
            collate_fn=collate,
            multiprocessing_context="fork" if workers else None,
        )

    torch.manual_seed(3)
    before = streams()
    data = as_batches(loader())
    whole = take(data, 10)
    assert len(data) == 5
    data.close()
    cut = as_batches(loader())
    pieces = take(cut, 7)
    state = cut.state_dict()
    cut.close()
    torch.manual_seed(4)
    again = as_batches(loader())
    again.load_state_dict(state)
    assert again.drift == ()
    assert pieces + take(again, 3) == whole
    again.close()
    if not shuffle:
        assert ids(whole)[0] == [0, 1, 2, 3]
    torch.manual_seed(3)
    assert streams() == before


def test_plain_loader_seed() -> None:
    """The seed of a DataLoader's own generator is the one that its order is drawn from."""
    loader = DataLoader(range(64), 8, shuffle=True, generator=torch.Generator().manual_seed(11))  # type: ignore[arg-type]
    assert as_batches(loader).state_dict()["seed"] == 11


def test_worker_init_sees_the_dataset() -> None:
    """In a loader process torch's worker info shows the script's own dataset."""
    data = batches(Opened(), 2, workers=1, start_method="fork", worker_init_fn=open_it)
    assert next(iter(data)).tolist() == [True, True]
    data.close()


class Opened(Dataset[bool]):
    handle: object = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        info = get_worker_info()
        return info is not None and info.dataset is self and self.handle == "open"


def open_it(_worker: int) -> None:
    info = get_worker_info()
    if info is not None:
        info.dataset.handle = "open"  # type: ignore[attr-defined]


class Stateful:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_stateful_as_is() -> None:
    """What keeps its own state, and what is ours already, is taken as it is."""
    for data in (Stateful(), made()):
        assert as_batches(data) is data


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Overriding(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([])


PLAIN = TensorDataset(torch.arange(8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(Endless(), 4), "the iterable dataset Endless: it can't be entered in the middle"),
        (lambda: DataLoader(PLAIN, None), "a DataLoader with batch_size=None"),
        (lambda: DataLoader(PLAIN, batch_sampler=[[1, 2], [3]]), "with the batch sampler list"),
        (lambda: DataLoader(PLAIN, 2, sampler=SubsetRandomSampler([1, 2])), "SubsetRandomSampler.*Subset"),
        (lambda: DataLoader(PLAIN, 2, sampler=WeightedRandomSampler([1.0] * 8, 8)), "WeightedRandomSampler"),
        (
            lambda: DataLoader(PLAIN, 2, sampler=RandomSampler(PLAIN, replacement=True)),
            "RandomSampler as it is",
        ),
        (lambda: Overriding(PLAIN, 2), "a Overriding: it changes how a DataLoader iterates"),
        (lambda: [1, 2, 3], "data of type list: it has no state_dict"),
        (lambda: batches(iter(()), 2), "dataset tuple_iterator: it has no __len__"),
        (lambda: batches([1, 2], 2, sampler=[1, 0]), "the sampler list.*a function from the epoch"),  # type: ignore[arg-type]
    ],
)
def test_refused(make: Any, message: str) -> None:
    """What can't be taken up in the middle is refused with the reason and what to use instead."""
    with pytest.raises(NotResumable, match=message):
        as_batches(make())


def test_explicit_batch_sampler() -> None:
    """A plain BatchSampler given by hand, and a Subset, are as good as a batch size."""
    part = Subset(PLAIN, [7, 5, 3, 1])
    data = as_batches(DataLoader(part, batch_sampler=BatchSampler(RandomSampler(part), 2, drop_last=True)))
    assert sorted(int(x) for (batch,) in data for x in batch) == [1, 3, 5, 7]


def stateful(workers: int, **options: Any) -> StatefulDataLoader[Any]:
    context = "fork" if workers else None
    return StatefulDataLoader(
        TensorDataset(torch.arange(24)), 4, num_workers=workers, multiprocessing_context=context, **options
    )


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_torchdatas_loader_goes_on_exactly(workers: int, shuffle: bool) -> None:
    """Taken as it is, it gives the rest of the epoch and the next one as the uninterrupted run had them."""
    torch.manual_seed(3)
    data = as_batches(stateful(workers, shuffle=shuffle))
    assert isinstance(data, StatefulDataLoader)
    for _ in range(2):
        assert len(list(data)) == 6
    drawing = iter(data)
    for _ in range(2):
        next(drawing)
    state, streams_then = data.state_dict(), torch.get_rng_state()
    rest = [batch.tolist() for (batch,) in drawing] + [batch.tolist() for (batch,) in data]
    torch.manual_seed(4)
    again = as_batches(stateful(workers, shuffle=shuffle))
    again.load_state_dict(state)
    torch.set_rng_state(streams_then)
    assert [batch.tolist() for _ in range(2) for (batch,) in again] == rest


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampler": RandomSampler(range(24))}, "RandomSampler"),
        ({"sampler": WeightedRandomSampler([1.0] * 24, 24)}, "WeightedRandomSampler"),
        ({"sampler": SubsetRandomSampler(range(24))}, "SubsetRandomSampler"),
        ({"shuffle": True, "generator": torch.Generator()}, "a generator that it shuffles by"),
    ],
)
def test_torchdatas_loader_is_refused_where_it_forgets(options: dict[str, Any], why: str) -> None:
    """What would draw another order after a restart, and say nothing, is refused by name with the cure."""
    with pytest.raises(NotResumable, match=f"{why}.*batches"):
        as_batches(stateful(0, **options))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loader_that_saves_its_order_itself_is_taken_as_it_is() -> None:
    """Whatever its sampler, and whichever class it is made of: what has a state of its own is the script's affair."""

    class Plain(DataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    class Own(StatefulDataLoader[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {}

    for kind in (Plain, Own):
        loader = kind(PLAIN, sampler=RandomSampler(PLAIN))
        assert as_batches(loader) is loader


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_is_taken_with_batches_that_keep_a_state() -> None:
    """What cuts the batches saves the order by itself: the sampler in it need not."""

    class Cut(BatchSampler):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    loader = StatefulDataLoader(PLAIN, batch_sampler=Cut(RandomSampler(PLAIN), 4, False))
    assert as_batches(loader) is loader
