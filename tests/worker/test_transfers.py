"""The order of copies from a device: on streams that are threads, a wait that is missing shows as a torn copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.waiting import wait_until
from tests.worker.device_copies import LATER, Save, copied, gated, passed, state
from tests.worker.scripts.streams import Stream, Threads

from outlast_worker import transfers
from outlast_worker.buffer import Buffer
from outlast_worker.devices import DeviceFailed
from outlast_worker.imaging import into, plan
from outlast_worker.saving import take_state
from outlast_worker.sources import Mode
from outlast_worker.transfers import Transfers


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("pinned", [True, False])
def test_what_was_queued_before_the_boundary_is_in_the_copy(mode: Mode, pinned: bool) -> None:
    """The copy waits for the training's stream as it was at the boundary, however late that gets there."""
    device, weight = Threads(), torch.zeros(1000)
    gate = gated(device.stream)
    device.stream.put(lambda: weight.data.fill_(7))
    save = Save(device, weight, mode=mode, pinned=pinned)
    threading.Thread(target=save.transfers.arrive).start()
    passed(device.side()).wait(LATER)
    gate.set()
    assert bool((save.arrived()[0] == 7).all())


def test_an_update_waits_for_the_copy_and_the_thread_that_queues_it_does_not() -> None:
    """Queued on the training's stream, or another, after `close`: it is done behind the copy; nobody was held up."""
    device, weights = Threads(), [torch.zeros(1000), torch.zeros(50)]
    gate = gated(device.side())
    save = Save(device, *weights)
    save.transfers.close()
    device.stream.put(lambda: weights[0].data.fill_(9))
    first = passed(device.stream)
    device.stream = Stream()
    save.transfers.hold_back()
    device.stream.put(lambda: weights[1].data.fill_(9))
    second = passed(device.stream)
    first.wait(LATER)
    second.wait(LATER)
    assert not save.transfers.arrived
    gate.set()
    assert [bool((found == 0).all()) for found in save.arrived()] == [True, True]
    assert save.transfers.kept()
    assert first.wait(60)
    assert second.wait(60)


def test_who_writes_waits_until_all_is_there() -> None:
    """It goes on when the last byte has arrived, and not before."""
    device, found = Threads(), []
    gate = gated(device.side())
    save = Save(device, torch.ones(1000))
    thread = threading.Thread(target=lambda: found.append(save.arrived()[0].clone()))
    thread.start()
    thread.join(LATER)
    gate.set()
    thread.join(60)
    assert bool((found[0] == 1).all())


def test_where_the_device_does_not_reach_the_buffer_threads_carry_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of them, in pieces; `close` returns when the last one is there."""
    monkeypatch.setattr(transfers, "PIECE", 100)
    device = Threads()
    weights = [torch.rand(1000), torch.rand(7), torch.rand(5000)]
    save = Save(device, *weights, pinned=False)
    before = [weight.clone() for weight in weights]
    threads = [threading.Thread(target=save.transfers.arrive) for _ in range(3)]
    for thread in threads:
        thread.start()
    save.transfers.close()
    for weight in weights:
        weight.data.fill_(9)
    for thread in threads:
        thread.join(60)
    assert all(torch.equal(a, b) for a, b in zip(save.arrived(), before, strict=True))


def test_an_update_waits_for_the_last_piece_that_a_thread_carries() -> None:
    """Where nothing is left to be taken up and one is still under way, `close` does not return."""
    device, weight = Threads(), torch.zeros(1000)
    save = Save(device, weight, pinned=False)
    gate = gated(device.side())

    def update() -> None:
        save.transfers.close()
        weight.data.fill_(9)

    threads = [threading.Thread(target=save.transfers.arrive), threading.Thread(target=update)]
    for thread in threads:
        thread.start()
        thread.join(LATER)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert not any(save.arrived()[0].tolist())


def test_samples_are_of_the_boundary() -> None:
    """A change of all behind the boundary that gets into the copy is found; one in front of it is none."""
    device, weight = Threads(), torch.rand(1000)
    device.stream.put(lambda: weight.data.mul_(2))
    save = Save(device, weight)
    save.arrived()
    assert save.transfers.kept()
    gate = gated(device.side())
    save = Save(device, weight)
    device.stream.put(lambda: weight.data.mul_(0.99))
    wait_until(passed(device.stream).is_set, 60, "the change")
    gate.set()
    save.arrived()
    assert not save.transfers.kept()


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("room", [True, False])
def test_a_rehearsal_compares_what_stood_there_before_the_update(
    monkeypatch: pytest.MonkeyPatch, changed: bool, room: bool
) -> None:
    """One element changed unseen is found, in whatever piece; the update itself, queued behind it, is not. Where
    the device has no room for a piece it is done by the host."""
    monkeypatch.setattr(transfers, "PIECE", 1024)
    if not room:
        monkeypatch.setattr(transfers, "_compare", lambda *_: None)
        monkeypatch.setattr(Threads, "queue", _without_room(Threads.queue))
    device, weight = Threads(), torch.rand(1000)
    save = Save(device, weight, mode=Mode.REHEARSED)
    before = save.arrived()[0].clone()
    if changed:
        device.stream.put(lambda: weight.data[777].add_(1))
        wait_until(passed(device.stream).is_set, 60, "the change")
    gate = gated(device.side())  # which has no part in it
    save.transfers.close()
    device.stream.put(lambda: weight.data.fill_(9))
    assert passed(device.stream).wait(60)
    gate.set()
    assert save.transfers.unchanged() != changed
    assert torch.equal(save.arrived()[0], before)


def _without_room(queue: Callable[..., None]) -> Callable[..., None]:
    """Operations fail from the second thing on that is queued."""
    calls: list[int] = []

    def fails(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise torch.OutOfMemoryError("none")
        queue(*arguments)

    return fails


def test_the_order_in_which_a_device_is_asked() -> None:
    """Boundary: mark the training's stream, hold ours behind it, copy, mark. Update: hold the training's. End: wait."""
    device = Threads()
    save = Save(device, torch.ones(5), torch.ones(6))
    begun = [
        "queue current",
        "mark current",
        "hold side",
        "used side",
        "used side",
        "queue side",
        "mark side",
    ]
    assert device.log == begun
    save.transfers.close()
    assert device.log == [*begun, "hold current"]
    save.transfers.arrive()
    assert device.log == [*begun, "hold current", "reach"]
    save.transfers.hold_back()
    assert device.log == [*begun, "hold current", "reach"]


def test_every_kind_of_tensor_arrives_as_the_host_would_copy_it() -> None:
    """Tied ones, views, other types, strides, holes, nothing at all: byte for byte what is copied without a device."""
    flat = torch.rand(100)
    parts = {
        "whole": torch.rand(30, 7),
        "tied": [flat, flat],
        "views": [torch.rand(50)[10:20], flat[5:9]],
        "integers": torch.arange(9, dtype=torch.int16),
        "truth": torch.tensor([True, False]),
        "complex": torch.rand(4, dtype=torch.complex64),
        "turned": torch.rand(5, 6).t(),
        "holes": torch.rand(40)[::3],
        "small": torch.rand(64).to(torch.bfloat16)[1:],
        "empty": torch.empty(0),
        "number": torch.tensor(5),
    }
    planned = plan(take_state(state(**parts)))
    plain, through = Buffer(planned.size), Buffer(planned.size)
    into(plain, planned, Mode.AT_ONCE, {})
    found = Transfers(Threads(), torch.frombuffer(through.view, dtype=torch.uint8), pinned=True)
    into(through, planned, Mode.AT_ONCE, {}, found)
    found.arrive()
    here, there = copied(planned, plain), copied(planned, through)
    assert {key: bytes(data) for key, data in here.items()} == {
        key: bytes(data) for key, data in there.items()
    }
    assert len(here) > 8


@pytest.mark.parametrize("pinned", [True, False])
def test_a_device_that_fails_is_told_and_hangs_nobody(pinned: bool) -> None:
    """At the boundary it is an error of its own; later one of the save, for each that waits."""

    class Broken(Threads):
        working = True

        def queue(self, stream: Stream, work: Callable[[], None]) -> None:
            self._check()
            super().queue(stream, work)

        def reach(self, event: threading.Event) -> None:
            self._check()
            super().reach(event)

        def _check(self) -> None:
            if not self.working:
                raise RuntimeError("gone")

    device = Broken()
    save = Save(device, torch.ones(5), pinned=pinned)
    device.working = False
    save.transfers.hold_back()
    for _ in range(2):
        with pytest.raises(OSError, match="the copy from the device failed: gone"):
            save.transfers.arrive()
    assert save.transfers.failed
    with pytest.raises(DeviceFailed):
        Save(device, torch.ones(5), pinned=pinned)
