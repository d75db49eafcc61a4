"""Gives each test of cron a machine of its own, and the runs of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cron.machine import Machine
from tests.e2e.conftest import make_run, reference

__all__ = ["machine", "make_run", "reference"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """One that is off."""
    made = Machine(tmp_path / "machine")
    yield made
    made.cut_power()
