"""The process-wide random streams: captured, restored and digested exactly."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from outlast_worker.ptfile import load_pt, stream
from outlast_worker.rng import RngError, capture_rng_state, restore_rng_state, rng_digests


def draws() -> list[object]:
    return [
        [random.random() for _ in range(3)],
        random.gauss(0, 1),
        np.random.rand(3).tolist(),
        np.random.randn(),
        torch.randn(5).tolist(),
        torch.rand(3).tolist(),
        torch.randperm(17).tolist(),
        *[torch.randn(3, device=f"cuda:{n}").tolist() for n in range(torch.cuda.device_count())],
    ]


pytestmark = pytest.mark.usefixtures("own_streams")


def test_all_streams_go_on_as_they_would_have() -> None:
    """After a restore each stream gives the draws that followed the capture."""
    draws()
    state = capture_rng_state()
    first = draws()
    draws()
    assert restore_rng_state(state) == []
    assert draws() == first


def test_a_cached_second_gaussian_is_kept() -> None:
    """A Gaussian that was drawn as one of a pair and not handed out yet is part of the state."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1), np.random.randn(), torch.randn(1, dtype=torch.float64)
    state = capture_rng_state()
    second = random.gauss(0, 1), np.random.randn(), torch.randn(1, dtype=torch.float64).item()
    random.seed(2)
    np.random.seed(2)
    torch.manual_seed(2)
    restore_rng_state(state)
    assert (random.gauss(0, 1), np.random.randn(), torch.randn(1, dtype=torch.float64).item()) == second


def test_the_state_passes_the_safe_loader_unconverted() -> None:
    """What is captured is numbers, text, tuples, lists and tensors, and loads with weights_only."""
    state = capture_rng_state()
    first = draws()
    loaded = load_pt(b"".join(stream(state)))
    restore_rng_state(loaded)
    assert draws() == first


@pytest.mark.parametrize("stream_name", ["python", "numpy", "torch"])
@pytest.mark.parametrize("damage", [None, "missing", (), "text", (1, 2, 3)])
def test_a_stream_that_cannot_be_restored_is_an_error(stream_name: str, damage: object) -> None:
    """A lost stream raises, naming it; only with allow_loss it is a sentence, and the others are restored."""
    state = capture_rng_state()
    first = draws()
    if damage == "missing":
        del state[stream_name]
    else:
        state[stream_name] = damage
    with pytest.raises(RngError, match=f"random state of {stream_name}"):
        restore_rng_state(state)
    told = restore_rng_state(state, allow_loss=True)
    assert len(told) == 1
    assert stream_name in told[0]
    mine = {"python": [0, 1], "numpy": [2, 3], "torch": [4, 5, 6]}[stream_name]
    again = draws()
    assert [d for n, d in enumerate(again) if n not in mine] == [
        d for n, d in enumerate(first) if n not in mine
    ]


def test_a_device_that_is_gone_is_drift() -> None:
    """Random state of a CUDA device that no longer exists is reported, not raised."""
    state = capture_rng_state()
    state["cuda"] = [*state["cuda"], torch.zeros(16, dtype=torch.uint8)]
    gone = f"cuda:{len(state['cuda']) - 1}"
    assert restore_rng_state(state) == [f"{gone} no longer exists; its random state is left out"]


def test_another_generator_behind_numpy_is_refused() -> None:
    """A bit generator put behind numpy's legacy functions can't be captured, and that is said."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(RngError, match="PCG64"):
            capture_rng_state()
    finally:
        np.random.set_bit_generator(before)


def test_each_draw_changes_the_digest_of_its_stream_alone() -> None:
    """The digest of a stream tells a single draw, and no other stream's digest changes."""
    acts = {
        "python": random.random,
        "numpy": np.random.rand,
        "torch": lambda: torch.rand(1),
    }
    for name, draw in acts.items():
        before = rng_digests()
        draw()
        after = rng_digests()
        assert {key for key in before if before[key] != after[key]} == {name}
        assert all(len(value) == 16 for value in after.values())


def test_a_cached_gaussian_is_in_the_digest() -> None:
    """Two streams that differ only in a Gaussian not handed out yet have different digests."""
    state = capture_rng_state()
    version, words, _ = state["python"]
    name, key, position, _, _ = state["numpy"]
    digests = []
    for gauss in (0.25, 0.5):
        state["python"] = (version, words, gauss)
        state["numpy"] = (name, key, position, 1, gauss)
        restore_rng_state(state)
        digests.append(rng_digests())
    assert digests[0]["python"] != digests[1]["python"]
    assert digests[0]["numpy"] != digests[1]["numpy"]


def test_digests_are_equal_in_another_process() -> None:
    """Equal seeds give equal digests in different processes, also under -O."""
    code = (
        "import random, numpy, torch; from outlast_worker.rng import rng_digests;"
        "random.seed(3); numpy.random.seed(3); torch.manual_seed(3); torch.randn(1);"
        "print(sorted(i for i in rng_digests().items() if 'cuda' not in i[0]))"
    )
    command = [sys.executable, "-O", "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    torch.randn(1)
    assert output.strip() == str(sorted(i for i in rng_digests().items() if "cuda" not in i[0]))


def test_a_stream_of_a_device_that_is_there_is_restored_or_the_run_does_not_go_on(
    own_streams: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device that still exists refuses is an error, and a report only where the loss is allowed."""

    def refuse(state: torch.Tensor, device: int) -> None:
        raise RuntimeError("not of this generator")

    state = capture_rng_state()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", refuse)
    state["cuda"] = [torch.zeros(16, dtype=torch.uint8)]
    with pytest.raises(RngError, match="cuda:0 could not be restored: RuntimeError: not of this generator"):
        restore_rng_state(state)
    (told,) = restore_rng_state(state, allow_loss=True)
    assert "cuda:0" in told
