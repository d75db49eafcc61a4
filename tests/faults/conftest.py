"""What lasts longest begins first: side by side with the others it then ends with them."""

from __future__ import annotations

import pytest

_FIRST = "test_soak.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the soak before all the rest; the order of the others stays."""
    items.sort(key=lambda item: item.path.name != _FIRST)
