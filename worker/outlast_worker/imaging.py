"""A state on its way into the buffer, laid out there as the files that will be written."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from outlast_jobs.buffer_note import Storage
from outlast_worker.buffer import Buffer, aligned
from outlast_worker.image import ShardImage, layout_of
from outlast_worker.layout import Layout
from outlast_worker.shards import PARTS, Component, Taken
from outlast_worker.sources import Mode, watched_by
from outlast_worker.transfers import Transfers
from outlast_worker.window import Probe, Span, Watched, copy_now, watch


class Plan(msgspec.Struct, frozen=True):
    """How the shards of a state lie in a buffer."""

    taken: Taken
    layouts: tuple[Layout, ...]
    starts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of buffer that it takes."""
        return self.starts[-1]


class Snapshot(msgspec.Struct, frozen=True):
    """A state that is in the buffer, but for what is still to be copied."""

    plan: Plan
    buffer: Buffer
    meanwhile: tuple[Span, ...]
    """To be copied before the sources change."""
    rehearsed: tuple[Span, ...]
    """Copied, and to be compared before the sources may change."""
    watched: tuple[Watched, ...]
    probe: Probe
    transfers: Transfers
    """What devices copy of it."""

    def images(self) -> tuple[ShardImage, ...]:
        """The files as they will be written, once all is there."""
        plan, view = self.plan, self.buffer.view
        each = zip(plan.layouts, plan.taken.shards, plan.starts, strict=False)
        return tuple(
            ShardImage(layout, components, view[at : at + layout.size]) for layout, components, at in each
        )


def plan(taken: Taken) -> Plan:
    """Where everything goes. NoLayout where this torch can't tell."""
    layouts = tuple(layout_of(taken, number) for number in range(len(taken.shards)))
    return Plan(taken, layouts, tuple(aligned([layout.size for layout in layouts])))


def storages_of(layout: Layout, components: Sequence[Component]) -> tuple[Storage, ...]:
    """The storages of a shard's file, in its order."""
    return tuple(
        Storage(gap.start, gap.nbytes, gap.crc_at, _kind(components[gap.storage]))
        for gap in sorted(layout.gaps, key=lambda gap: gap.start)
    )


def into(
    buffer: Buffer,
    planned: Plan,
    mode: Mode,
    movable: dict[tuple[Any, ...], torch.Tensor],
    transfers: Transfers | None = None,
) -> Snapshot:
    """Copy what can't wait; what can is only noted. The buffer is free for it. Raises DeviceFailed."""
    meanwhile: list[Span] = []
    now: list[Span] = []
    tensors: list[torch.Tensor] = []
    for layout, components, start in zip(planned.layouts, planned.taken.shards, planned.starts, strict=False):
        for gap in layout.gaps:
            component = components[gap.storage]
            owners = None if mode is Mode.AT_ONCE else watched_by(component, movable)
            if transfers is not None and transfers.take(
                component, start + gap.start, lazily=owners is not None
            ):
                tensors += owners or ()
                continue
            span = _span(component, buffer.address + start + gap.start, gap.nbytes)
            if component.memory() is None:
                copy_now([span])  # made for this: one at a time, or there would be a second copy of all
            elif owners is None:
                now.append(span)
            else:
                meanwhile.append(span)
                tensors += owners
    watched = watch(tensors)  # before the first byte is read
    if transfers is not None:
        transfers.begin(mode)
    probe = Probe(meanwhile if mode is Mode.MEANWHILE else (), random.Random())
    copy_now(now if mode is Mode.MEANWHILE else [*now, *meanwhile])
    rehearsing = mode is Mode.REHEARSED
    return Snapshot(
        planned,
        buffer,
        () if rehearsing else tuple(meanwhile),
        tuple(meanwhile) if rehearsing else (),
        tuple(watched),
        probe,
        transfers or Transfers(),
    )


def _kind(component: Component) -> str:
    """The format in which a NaN among these bytes makes the state a sick one."""
    of_parts = {member.key for member in component.members if member.bucket == PARTS}
    for view in component.storage().views:
        if view.key in of_parts and (view.dtype.is_floating_point or view.dtype.is_complex):
            return str(view.dtype.to_real()).removeprefix("torch.")  # of a complex number both halves
    return ""


def _span(component: Component, target: int, nbytes: int) -> Span:
    first = component.members[0].tensor
    address = component.memory()
    if address is not None:
        return Span(address, target, nbytes, first)
    made = next(iter(component.content().values()))
    storage = made.untyped_storage()
    if storage.nbytes() != nbytes:
        raise ValueError(f"a storage has {storage.nbytes()} bytes, {nbytes} were laid out")
    return Span(storage.data_ptr(), target, nbytes, made)
