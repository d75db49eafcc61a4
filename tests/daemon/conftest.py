"""Gives each test of the daemon its folder, and ends whatever is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.yard import Yard
from tests.e2e.conftest import instants, reference

__all__ = ["instants", "reference", "yard"]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A folder of jobs without a daemon yet."""
    made = Yard(tmp_path)
    yield made
    made.kill_all()
