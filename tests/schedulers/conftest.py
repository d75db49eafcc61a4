"""Gives the tests of what schedulers need the runs of the end-to-end tests, and a Slurm job's tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import make_run
from tests.schedulers.fake_slurm import FakeSlurm

__all__ = ["make_run", "slurm"]


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """The tools of a Slurm job."""
    return FakeSlurm(tmp_path / "slurm")
