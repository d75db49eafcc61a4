"""The note in a buffer: what is kept of it from one save to the next is what it would be anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.worker.copies import RUN, state_of, zoo

from outlast_jobs.buffer_note import Note, read_note
from outlast_jobs.generation import GenerationName
from outlast_worker import noting
from outlast_worker.again import Again
from outlast_worker.buffer import Buffer
from outlast_worker.imaging import Plan
from outlast_worker.noting import fill, note_down
from outlast_worker.saving import IndexFields, index_of


def noted(planned: Plan, state: dict[str, Any]) -> Note:
    """The note of a plan, as another process reads it."""
    buffer = Buffer(planned.size)
    fill(planned, buffer)
    name = GenerationName(7, 1)
    index = index_of(name, state["counters"], RUN, IndexFields(), None, 0.0)
    assert note_down(planned, buffer, name, index, 1.0) is not None
    return read_note(buffer.fd)


def test_what_is_kept_of_a_note_belongs_to_states_made_alike() -> None:
    """A save of the same tensors is noted as the one before; any other one, and that one later, by what it is."""
    first, other = state_of(model=zoo()), state_of(model={"a": torch.rand(5000), "b": torch.rand(7)})
    again, others = Again(), Again()
    new = noted(again.plan(first), first).files
    kept = noting._newest
    assert noted(again.plan(first), first).files == new
    assert noting._newest is kept, "it was made anew"
    planned = others.plan(other)
    different = noted(planned, other).files
    assert [file.nbytes for file in different[:-1]] == [layout.size for layout in planned.layouts]
    assert {s.nbytes for file in different[:-1] for s in file.storages} == {20000, 28}
    assert noted(again.plan(first), first).files == new
    assert all(file.storages for file in new[:-1])


def test_a_state_of_unknown_numbers_is_never_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers in which nobody else could find a NaN there is no note, the first time and each time after."""
    monkeypatch.setattr(noting, "KINDS", frozenset())  # as on a machine whose bytes lie the other way round
    state = state_of(model={"a": torch.zeros(5000)})
    again, name = Again(), GenerationName(7, 1)
    index = index_of(name, state["counters"], RUN, IndexFields(), None, 0.0)
    for _ in range(2):
        planned = again.plan(state)
        assert note_down(planned, Buffer(planned.size), name, index, 1.0) is None
