"""Saves in flight from a device: who is held up by them, and when they count."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.waiting import wait_until
from tests.worker.device_copies import LATER, copied, gated, passed, state
from tests.worker.scripts.streams import Stream, Threads

from outlast_jobs.buffer_state import STATE_AT, State
from outlast_worker import flight, meanwhile, sources
from outlast_worker.buffer import Buffer
from outlast_worker.cost import Cost
from outlast_worker.imaging import Plan, plan
from outlast_worker.saving import Saved, take_state


class Saves:
    """The saves of two parameters, each with an optimizer that queues its update on the device's current stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = device = Threads()
        monkeypatch.setattr(meanwhile, "devices", lambda: device)

        class Filling(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                for parameter in self.param_groups[0]["params"]:
                    device.stream.put(lambda parameter=parameter: parameter.data.fill_(9))

        weights = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(2)]
        self.optimizers = [Filling([weight]) for weight in weights]
        self.said: list[str] = []
        self.states: list[State] = []
        """How far the copy is, when it is noted and when it may be sealed."""
        self.found: dict[str, bytes] = {}
        self.saves = meanwhile.Meanwhile(self.said.append)
        self.saves.watch(self.optimizers)
        self._tree = state(**{f"t{number}": weight for number, weight in enumerate(weights)})
        self.saves.buffers.prepare(plan(take_state(self._tree)).size)
        self.saves.buffers.settled()
        buffer = self.saves.buffers.of(1)
        if buffer is None:
            raise MemoryError("no room for a buffer")
        self.buffer = buffer

    @property
    def state(self) -> State:
        return State(self.buffer.behind[STATE_AT])

    def begin(self, goes_on: Any = lambda: None) -> bool:
        nothing: Any = lambda *_: None  # noqa: E731
        cost = Cost(1, time.monotonic())
        return self.saves.begin(
            1,
            self._tree,
            self._note,
            self._write,
            announce=nothing,
            goes_on=goes_on,
            report=nothing,
            landed=nothing,
            cost=cost,
        )

    def _note(self, planned: Plan, buffer: Buffer) -> memoryview:
        self.states.append(self.state)
        return memoryview(b"")

    def _write(self, planned: Plan, snapshot: Any, meta: Any, confirmed: Any, progress: Any) -> Saved:
        confirmed()
        self.states.append(self.state)
        self.found = {key: bytes(data) for key, data in copied(planned, self.buffer).items()}
        return Saved(Path(), 0, 0.0, None)


def test_each_optimizer_holds_its_own_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that step on two streams while a copy is under way, each one's update comes behind it."""
    monkeypatch.setattr(sources, "REHEARSALS", 0)
    run = Saves(monkeypatch)
    run.saves._stepped = True
    gate = gated(run.device.side())
    assert run.begin()
    flight = run.saves.flight
    assert flight is not None
    assert flight.meanwhile
    for optimizer in run.optimizers:
        optimizer.step()
        passed(run.device.stream).wait(LATER)
        run.device.stream = Stream()
    gate.set()
    assert flight.wait().saved is not None
    assert not any(map(any, run.found.values()))
    assert not flight.differed()
    assert not run.said


@pytest.mark.parametrize("how", ["at once", "rehearsed", "meanwhile"])
def test_a_copy_counts_for_those_after_us_when_it_has_arrived(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """While the device has still to copy, what lies in the buffer is not told to be whole, in whatever way it is
    copied; it is before anything is sealed."""
    monkeypatch.setattr(sources, "REHEARSALS", 1 if how == "rehearsed" else 0)
    run = Saves(monkeypatch)
    run.saves._stepped = how != "at once"
    gate = gated(run.device.side() if how == "meanwhile" else run.device.stream)
    assert run.begin()
    flight = run.saves.flight
    assert flight is not None
    assert (flight.compared, flight.meanwhile) == (how == "rehearsed", how == "meanwhile")
    wait_until(lambda: run.states, 60, "the note")
    assert not flight._ended.wait(LATER)
    assert run.state is State.NONE
    if how == "rehearsed":
        run.saves.close()
        assert run.state is State.NONE
    gate.set()
    run.saves.close()
    assert flight.wait().saved is not None
    assert run.states == [State.NONE, State.COPIED]
    assert run.state is State.SEALED
    assert not flight.differed()


def test_what_is_told_at_a_boundary_is_told_before_a_thread_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The training's thread lets go of the interpreter for it, and would have to wait for its turn behind the saver."""
    saves, order = Saves(monkeypatch), list[str]()
    carry = flight.Crew.carry

    def carried(crew: flight.Crew, job: Any) -> None:
        order.append("begun")
        carry(crew, job)

    monkeypatch.setattr(flight.Crew, "carry", carried)
    assert saves.begin(lambda: order.append("told"))
    found = saves.saves.flight
    assert found is not None
    saves.saves.close()
    found.wait()
    assert order == ["told", "begun"]


def test_a_device_that_takes_no_copies_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused at the boundary: the training is told to save by itself, then and from then on."""
    run = Saves(monkeypatch)

    def refuses(*_: Any) -> None:
        raise RuntimeError("invalid argument")

    monkeypatch.setattr(Threads, "queue", refuses)
    assert not run.begin()
    monkeypatch.undo()
    monkeypatch.setattr(meanwhile, "devices", lambda: run.device)
    assert not run.begin()
    assert run.saves.flight is None
    assert run.state is State.NONE
    assert run.said == [
        "a copy from a device failed: invalid argument; from now on the training waits for each save"
    ]
