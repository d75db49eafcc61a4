"""Places of random streams, and the draws between them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_worker.orbits import draws_between, places
from outlast_worker.rng import capture_rng_state

DRAW = {
    "python": lambda n: [random.getrandbits(32) for _ in range(n)],
    "numpy": lambda n: np.random.randint(0, 2**32, n, dtype=np.uint32),
    "torch": lambda n: torch.rand(n),
}


@pytest.fixture(autouse=True)
def streams_kept() -> Any:
    """The streams of the test process are given back."""
    kept = capture_rng_state()
    yield
    random.setstate(kept["python"])
    np.random.set_state(kept["numpy"])
    torch.set_rng_state(kept["torch"])


def seed() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


@settings(max_examples=30, deadline=None)
@given(before=st.integers(0, 1300), between=st.integers(0, 1300))
@pytest.mark.parametrize("stream", DRAW)
def test_draws_are_counted_from_any_place(stream: str, before: int, between: int) -> None:
    """However many words were drawn before, those drawn since are counted exactly."""
    seed()
    DRAW[stream](before)
    state = capture_rng_state()
    DRAW[stream](between)
    assert draws_between(state, stream, [places(capture_rng_state())[stream]]) == [between]


def test_the_draw_of_a_loader_is_one_of_64_bits() -> None:
    """Making the iterator of a DataLoader takes two words from torch's stream."""
    seed()
    state = capture_rng_state()
    iter(torch.utils.data.DataLoader([1, 2]))
    assert draws_between(state, "torch", [places(capture_rng_state())["torch"]]) == [2]


def test_a_stream_that_was_seeded_is_not_on_the_way() -> None:
    """A stream seeded anew, and one that lies behind, are on no way from the state."""
    seed()
    behind = places(capture_rng_state())["torch"]
    torch.rand(3)
    state = capture_rng_state()
    torch.manual_seed(6)
    assert draws_between(state, "torch", [places(capture_rng_state())["torch"], behind]) == [None, None]


def test_half_a_normal_draw_is_another_place() -> None:
    """A second normal value that waits in the stream makes it another place than without."""
    seed()
    random.gauss()
    with_half = places(capture_rng_state())["python"]
    random.gauss()
    assert places(capture_rng_state())["python"].rpartition(":")[0] == with_half.rpartition(":")[0]
    assert places(capture_rng_state())["python"] != with_half


def test_a_device_counts_by_its_offset() -> None:
    """A device's stream has seed and offset; another seed is on no way."""

    def state(seed: int, offset: int) -> torch.Tensor:
        return torch.from_numpy(np.array([seed, offset], dtype="<u8").view(np.uint8))

    rng = {**capture_rng_state(), "cuda": [state(7, 8)]}
    assert places(rng)["cuda:0"] == "philox:7:8"
    to = ["philox:7:20", "philox:8:20", "philox:7:4"]
    assert draws_between(rng, "cuda:0", to) == [12, None, None]
