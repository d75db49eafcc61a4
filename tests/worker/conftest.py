"""What several tests of the worker begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.listening import Listener, Zygote

from outlast_jobs.claim import claim


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A run's checkpoints, claimed by its first attempt and empty."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    claim(folder, 1)
    return folder


@pytest.fixture
def own_streams() -> Iterator[None]:
    """What a test draws from the process-wide random streams is put back."""
    from outlast_worker.rng import capture_rng_state, restore_rng_state

    before = capture_rng_state()
    yield
    restore_rng_state(before)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    found = Zygote()
    yield found
    found.close()


@pytest.fixture
def run(tmp_path: Path, zygote: Zygote, request: pytest.FixtureRequest) -> Iterator[Listener]:
    """A run of the script that the test's module names."""
    listener = Listener(tmp_path / "run", zygote)
    (listener.folder / "train.py").write_text(request.module.SCRIPT.read_text())
    yield listener
    listener.close()
