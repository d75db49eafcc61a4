"""`batches`, a resumable DataLoader, and `as_batches`, which makes one of what a script already has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from outlast_worker.resumable import Batches, DataChanged, NotResumable
from outlast_worker.samplers import Order, SampleOrder

__all__ = ["Batches", "DataChanged", "NotResumable", "as_batches", "batches"]


def batches(
    dataset: Any,
    batch_size: int,
    *,
    workers: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: int = 2,
    start_method: str | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    sampler: SampleOrder | None = None,
    pin_memory: bool = False,
    worker_init_fn: Callable[[int], object] | None = None,
    timeout: float = 0.0,
) -> Batches:
    """A resumable DataLoader over a map-style dataset.

    The order of each epoch comes from the seed and the epoch; each sample finds the process-wide streams of
    python, numpy and torch set from seed, epoch and sample, wherever it is loaded, so that the number of
    loader processes changes nothing. The streams of the training process are left as they were. Loader
    processes live over all epochs: what is changed in the dataset afterwards does not reach them.

    :param sampler: a function from the epoch to its list of indices, in place of shuffling; it must give the
        same list whenever it is asked for the same epoch.
    :param prefetch: batches fetched ahead by each loader process.
    """
    return _made(
        dataset,
        batch_size,
        workers=workers,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        prefetch=prefetch,
        start_method=start_method,
        sampler=sampler,
        seed_is_free=False,
        options={
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "worker_init_fn": worker_init_fn,
            "timeout": timeout,
        },
    )


def as_batches(data: Any) -> Any:
    """The same data as something that can be taken up again: it has `state_dict` and `load_state_dict`.

    What has them already is returned as it is, unless it is known to forget its order. A plain DataLoader over a
    map-style dataset becomes a `Batches` with the same settings; its order is then drawn from the seed of its
    generator, not by it. NotResumable, with the cure, for all that can't be taken up again.
    """
    if isinstance(data, Batches) or _is_stateful(data):
        if isinstance(data, DataLoader) and _saves_as_torchdata(data):
            _refuse_forgetful(data)
        return data
    if not isinstance(data, DataLoader):
        raise NotResumable(
            f"can't resume data of type {type(data).__name__}: it has no state_dict and load_state_dict; "
            "use outlast_worker.batches(dataset, batch_size=…)"
        )
    if type(data).__iter__ is not DataLoader.__iter__:
        raise NotResumable(
            f"can't resume a {type(data).__name__}: it changes how a DataLoader iterates and keeps no state; "
            "use outlast_worker.batches, or give it state_dict and load_state_dict"
        )
    return _rewrapped(data)


def _is_stateful(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))


def _saves_as_torchdata(loader: DataLoader[Any]) -> bool:
    """Whether its state is what torchdata saves: one of a script's own making may know the order."""
    module = getattr(getattr(type(loader), "state_dict", None), "__module__", None)
    return str(module).partition(".")[0] == "torchdata"


def _refuse_forgetful(loader: DataLoader[Any]) -> None:
    """Of torchdata's loader: it saves how far it is in the order, and of these samplers not what draws the order."""
    if _is_stateful(loader.batch_sampler):
        return
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        why = f"torch's {type(sampler).__name__}, which keeps no state"
    elif loader.generator is not None and getattr(sampler, "generator", None) is loader.generator:
        if loader.num_workers:
            return
        why = "a generator that it shuffles by, and no loader processes"  # which it draws from once more at a resume
    else:
        return
    raise NotResumable(
        f"can't resume a {type(loader).__name__} with {why}: it would draw another order after a restart and not say "
        "so; leave out the generator, or use outlast_worker.batches(…, sampler=function from the epoch to its indices)"
    )


def _rewrapped(loader: DataLoader[Any]) -> Batches:
    _refuse_iterable(loader.dataset)
    cut = loader.batch_sampler
    if type(cut) is not BatchSampler:
        what = "batch_size=None" if cut is None else f"the batch sampler {type(cut).__name__}"
        raise NotResumable(
            f"can't resume a DataLoader with {what}: where it stands in an epoch is not known; "
            "give it a batch_size, or use torchdata's StatefulDataLoader with samplers that have a state_dict"
        )
    shuffle, generator = _plain_order(cut.sampler, loader)
    context = loader.multiprocessing_context
    return _made(
        loader.dataset,
        cut.batch_size,
        workers=loader.num_workers,
        # Read, not drawn: a draw would move the process-wide stream.
        seed=generator.initial_seed() if generator is not None else torch.initial_seed(),
        shuffle=shuffle,
        drop_last=cut.drop_last,
        prefetch=loader.prefetch_factor or 2,
        start_method=context.get_start_method() if context is not None else None,
        sampler=None,
        seed_is_free=True,
        options={
            "collate_fn": loader.collate_fn,
            "pin_memory": loader.pin_memory,
            "worker_init_fn": loader.worker_init_fn,
            "timeout": loader.timeout,
        },
    )


def _plain_order(sampler: Any, loader: DataLoader[Any]) -> tuple[bool, torch.Generator | None]:
    """Whether it shuffles, and the generator that holds its seed; refused unless it is a plain order."""
    kind, dataset = type(sampler), loader.dataset
    if kind in (RandomSampler, SequentialSampler) and len(sampler) == len(dataset):  # type: ignore[arg-type]
        if kind is SequentialSampler:
            return False, loader.generator
        if not sampler.replacement:
            return True, sampler.generator or loader.generator
    raise NotResumable(
        f"can't resume a DataLoader with the sampler {type(sampler).__name__} as it is set: the order it "
        "draws can't be drawn again after a restart; use outlast_worker.batches(…, sampler=function from "
        "the epoch to its indices), a torch.utils.data.Subset, or torchdata's StatefulDataLoader with a sampler that "
        "has a state_dict"
    )


def _refuse_iterable(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise NotResumable(
            f"can't resume the iterable dataset {type(dataset).__name__}: it can't be entered in the middle; "
            "use a map-style dataset, or torchdata's StatefulDataLoader with a dataset that keeps state"
        )
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise NotResumable(
            f"can't resume the dataset {type(dataset).__name__}: it has no __len__ and __getitem__; "
            "use a map-style dataset"
        )


def _made(
    dataset: Any,
    batch_size: int,
    *,
    workers: int,
    seed: int,
    shuffle: bool,
    drop_last: bool,
    prefetch: int,
    start_method: str | None,
    sampler: SampleOrder | None,
    seed_is_free: bool,
    options: Mapping[str, Any],
) -> Batches:
    _refuse_iterable(dataset)
    least_of = {"batch_size": (batch_size, 1), "workers": (workers, 0), "prefetch": (prefetch, 1)}
    for name, (value, least) in least_of.items():
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if sampler is not None and not callable(sampler):
        raise NotResumable(
            f"can't resume the sampler {type(sampler).__name__}: its order can't be drawn again after a "
            "restart; pass a function from the epoch to its list of indices"
        )
    order = Order(len(dataset), batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last, custom=sampler)
    order.samples(0)  # an epoch without a batch is said here, not in the middle of training
    return Batches(
        dataset,
        order,
        workers=workers,
        prefetch=prefetch,
        start_method=start_method,
        seed_is_free=seed_is_free,
        options=options,
    )
