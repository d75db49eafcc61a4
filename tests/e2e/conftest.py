"""Gives each end-to-end test its runs, and ends whatever they left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """Makes runs: ``make_run(job, script=…, env=…)``, each in a folder of its own."""
    made: list[Run] = []

    def make(job: Mapping[str, Any], **options: Any) -> Run:
        run = Run(tmp_path / f"{len(made) + 1}", job, **options)
        made.append(run)
        return run

    yield make
    for run in made:
        run.close()
