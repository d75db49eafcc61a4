"""Gives each end-to-end test its runs, and ends whatever they left."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.exporting import copied, trained
from tests.e2e.harness import Run
from tests.e2e.reference import Reference, chance, make_reference

__all__ = ["copied", "trained"]
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


@pytest.fixture
def instants(request: pytest.FixtureRequest) -> random.Random:
    """Where this test's random instants come from."""
    return chance(request)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The undisturbed run of the toy, once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    return make_reference((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reference")
