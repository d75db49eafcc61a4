"""The runs of the end-to-end tests, for attacks on whole runs, and a disk that can lose its power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import make_run
from tests.e2e.harness import Run
from tests.faults.disk import Disk, own_mounts

__all__ = ["make_run"]


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """The runs of a test, ended with it."""
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


@pytest.fixture(params=["ext4", "xfs"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    with own_mounts():
        made = Disk(tmp_path, request.param)
        yield made
        made.close()
