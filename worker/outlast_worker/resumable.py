"""The resumable loader: a stream of batches over all epochs, and the position up to which it was consumed."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from outlast_worker.loaders import Pool, init_for
from outlast_worker.samplers import BatchStream, Draw, Order, Position, SeededDataset, streams_kept

SCHEMA = "outlast.batches/1"

_FIELDS: Mapping[str, type] = {
    "seed": int,
    "epoch": int,
    "position": int,
    "batch": int,
    "batch_size": int,
    "drop_last": bool,
    "shuffle": bool,
    "length": int,
}

_log = logging.getLogger("outlast")


class NotResumable(TypeError):
    """This source of batches can't be taken up again in the middle; the message says why and what to use."""


class DataChanged(ValueError):
    """The saved position has no meaning in this data; train on with the data it was saved with."""


class Batches:
    """What `batches` makes. Iterating yields the rest of the current epoch; iterate again for the next one.

    At the end of an epoch the rest is empty: a run resumed there iterates once over nothing, then goes on.

    Two positions are kept: the *cursor* counts what was handed out, the *committed* position what was
    consumed at the last boundary. Only the committed one is ever saved. An iteration that was left in the
    middle is taken up at the committed position, or, where nobody ever calls `consumed`, begun again.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        *,
        workers: int,
        prefetch: int,
        start_method: str | None,
        seed_is_free: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.last_ids: tuple[int, ...] = ()
        """Indices of the samples in the batch handed out last."""
        self.drift: tuple[str, ...] = ()
        """How this loader differs from the one whose state was loaded."""
        self._dataset = dataset
        self._order = order
        self._workers = workers
        self._prefetch = prefetch
        self._start_method = start_method
        self._seed_is_free = seed_is_free
        self._options = options
        self._committed = self._cursor = self._begun = Position()
        self._uncommitted = 0  # batches handed out since the committed position
        self._driven = False  # somebody calls consumed()
        self._exhausted = False  # the last iteration ran to the end of its epoch
        self._turn = 0  # which iteration may still hand out; an older one may not
        self._stream = BatchStream(order)
        self._pool: Pool | None = None

    # --- for the training loop ---

    def __len__(self) -> int:
        """Batches in the current epoch, those before the position included."""
        return self._order.batches(self._committed.epoch)

    def __iter__(self) -> Iterator[Any]:
        if not self._exhausted:
            self._rewind(self._committed if self._driven else self._begun)
        self._exhausted = False
        self._begun = self._cursor
        self._open()
        self._turn += 1
        return _Epoch(self, self._cursor.epoch, self._turn)

    def close(self) -> None:
        """End the loader processes; the next iteration starts new ones."""
        pool, self._pool = self._pool, None
        self._stream = BatchStream(self._order)
        if pool is not None:
            pool.close()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._jump(Position(epoch))

    # --- for the Checkpointer ---

    @property
    def epoch(self) -> int:
        """The epoch of the committed position, from 0."""
        return self._committed.epoch

    @property
    def position(self) -> int:
        """Samples of the epoch that were consumed at the last boundary."""
        return self._committed.sample

    @property
    def batch_in_epoch(self) -> int:
        """Batches of the epoch that were consumed at the last boundary."""
        return self._committed.batch

    def consumed(self, n: int | None = None) -> None:
        """Commit the next ``n`` batches, or all handed out so far: the boundary behind them was reached."""
        count = self._uncommitted if n is None else n
        if not 0 <= count <= self._uncommitted:
            raise ValueError(
                f"can't commit {count} batches: {self._uncommitted} were handed out since the last boundary"
            )
        self._driven = True
        for _ in range(count):
            self._committed = self._order.after(self._committed)
        self._uncommitted -= count

    def state_dict(self) -> dict[str, Any]:
        """The committed position and what it rests on, as plain values."""
        return {
            "schema": SCHEMA,
            "seed": self._order.seed,
            "epoch": self._committed.epoch,
            "position": self._committed.sample,
            "batch": self._committed.batch,
            "batch_size": self._order.batch_size,
            "drop_last": self._order.drop_last,
            "shuffle": self._order.shuffle,
            "length": self._order.length,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken. Order and seed are the state's; what differs is in `drift`."""
        saved = _checked(state)
        if saved["length"] != self._order.length:
            raise DataChanged(
                f"can't resume the data: the checkpoint counts in a dataset of {saved['length']} samples, "
                f"this one has {self._order.length}; resume with the dataset it was saved with"
            )
        if saved["shuffle"] != self._order.shuffle and saved["position"]:
            raise DataChanged(
                f"can't resume the data in the middle of epoch {saved['epoch']}: it was begun with "
                f"shuffle={saved['shuffle']} and would go on with shuffle={self._order.shuffle}; "
                "finish the epoch with the old value first"
            )
        self.drift = tuple(self._differences(saved))
        for line in self.drift:
            _log.warning("data: %s", line)
        if saved["seed"] != self._order.seed:
            self.close()  # what was fetched ahead came from the other order
            self._order.reseed(saved["seed"])
        self._jump(Position(saved["epoch"], saved["position"], saved["batch"]))

    def identity(self) -> dict[str, Any]:
        """What these batches are made of, for a generation's index; a dataset's own `identity` included."""
        own = getattr(self._dataset, "identity", None)
        own = own() if callable(own) else own
        order = self._order
        return {
            "dataset": type(self._dataset).__qualname__,
            "length": order.length,
            "batch_size": order.batch_size,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "drop_last": order.drop_last,
            **(own if isinstance(own, dict) else {} if own is None else {"identity": str(own)}),
        }

    # --- inside ---

    def _differences(self, saved: Mapping[str, Any]) -> Iterator[str]:
        order = self._order
        if saved["batch_size"] != order.batch_size:
            yield (
                f"batch size {saved['batch_size']} → {order.batch_size}: the position, kept in samples, is "
                "still valid; bit-exact is not expected"
            )
        if saved["drop_last"] != order.drop_last:
            yield f"drop_last {saved['drop_last']} → {order.drop_last}: epochs end elsewhere"
        if saved["shuffle"] != order.shuffle:
            yield f"shuffle {saved['shuffle']} → {order.shuffle}: other order from epoch {saved['epoch']} on"
        if saved["seed"] != order.seed and not self._seed_is_free:
            yield f"seed {order.seed} is not used: the order goes on with the checkpoint's, {saved['seed']}"

    def _jump(self, to: Position) -> None:
        self._committed = self._begun = to
        self._exhausted = False
        self._driven = False
        self._rewind(to)

    def _rewind(self, to: Position) -> None:
        """Hand out from here next; an iteration still in somebody's hands ends."""
        self._turn += 1
        self._cursor = to
        self._uncommitted = 0

    def _open(self) -> None:
        """Have a pool whose next batch is the one at the cursor."""
        if self._pool is not None and self._stream.upcoming != self._order.settled(self._cursor):
            self._skip()
        if self._pool is None:
            self._stream.seek(self._cursor)
            self._pool = self._new_pool()

    def _skip(self) -> None:
        """Throw away what was fetched ahead; cheaper than new loader processes."""
        self._stream.seek(self._cursor)
        for _ in range(len(self._stream.outstanding)):
            self._received()

    def _new_pool(self) -> Pool:
        options = dict(self._options)
        method = self._start_method or multiprocessing.get_start_method()
        if self._workers:
            options["prefetch_factor"] = self._prefetch
            options["multiprocessing_context"] = method
            options["worker_init_fn"] = init_for(method, options["worker_init_fn"])
        dataset: Any = SeededDataset(self._dataset)
        loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=self._stream,  # type: ignore[arg-type]
            num_workers=self._workers,
            # Otherwise each iterator takes its base seed from the process-wide stream.
            generator=torch.Generator(),
            **options,
        )
        return Pool(loader, method)

    def _received(self) -> tuple[Position, Draw, Any]:
        if self._pool is None:
            raise RuntimeError("the loader was closed while it was being iterated")
        try:
            if self._workers:
                batch = self._pool.next()
            else:
                with streams_kept():
                    batch = self._pool.next()
        except BaseException as error:
            self.close()  # what is still in flight can't be matched any more
            if isinstance(error, StopIteration):  # it would pass for the end of the epoch
                raise RuntimeError("the dataset raised StopIteration for a sample") from error
            raise
        at, draw = self._stream.outstanding.popleft()
        return at, draw, batch

    def hand_out(self, epoch: int, turn: int) -> Any:
        """The next batch of an iteration, which counts as handed out from here on."""
        if turn != self._turn:
            raise RuntimeError("this iteration ended when another was begun over the same batches")
        due = self._order.settled(self._cursor)
        if due.epoch != epoch:
            self._cursor = due
            self._exhausted = True
            raise StopIteration
        at, draw, batch = self._received()
        if at != due:
            raise RuntimeError(f"the loader is out of step: {at} came where {due} was due")
        self._cursor = self._order.after(at)
        self._uncommitted += 1
        self.last_ids = draw.ids
        return batch


class _Epoch(Iterator[Any]):
    """One iteration: the rest of one epoch."""

    def __init__(self, source: Batches, number: int, turn: int) -> None:
        self._source: Batches | None = source
        self._number = number
        self._turn = turn

    def __next__(self) -> Any:
        if self._source is None:
            raise StopIteration
        try:
            return self._source.hand_out(self._number, self._turn)
        except BaseException:
            self._source = None
            raise


def _checked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state, if it is one of ours."""
    failed = "can't resume the data: its state"
    schema = state.get("schema")
    if schema != SCHEMA:
        raise DataChanged(f'{failed} has schema "{schema}", this version reads "{SCHEMA}"')
    for key, kind in _FIELDS.items():
        if type(state.get(key)) is not kind:
            raise DataChanged(f'{failed} has no valid "{key}" ({kind.__name__} expected)')
    if min(state["epoch"], state["position"], state["batch"]) < 0:
        raise DataChanged(f"{failed} has a negative position")
    return state
