"""What lasts longest begins first, so that side by side it ends with the others; and the runs of the other folder."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import make_run

__all__ = ["make_run"]

_FIRST = "test_soak.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the soak before all the rest; the order of the others stays."""
    items.sort(key=lambda item: item.path.name != _FIRST)
