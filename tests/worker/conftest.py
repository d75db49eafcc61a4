"""What several tests of the worker begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast_jobs.claim import claim


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A run's checkpoints, claimed by its first attempt and empty."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    claim(folder, 1)
    return folder
