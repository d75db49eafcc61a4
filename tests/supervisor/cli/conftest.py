"""An empty folder, a run in it, and a supervisor that only takes notes."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.options import RunOptions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> RunDirectory:
    """A run in runs/tiny that nobody supervises."""
    made = RunDirectory(folder / "runs" / "tiny")
    made.create()
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """What `run` hands to the supervisor, which is not there and answers 75."""
    got: list[RunOptions] = []

    def supervise(options: RunOptions) -> int:
        got.append(options)
        return 75

    fake = types.ModuleType("outlast_supervisor.supervise")
    fake.supervise = supervise  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outlast_supervisor.supervise", fake)
    return got
