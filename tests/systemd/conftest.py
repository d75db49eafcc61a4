"""Gives the tests with systemd a service manager, runs, and the run that nothing disturbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Ended, Run
from tests.e2e.reference import Reference, make_reference
from tests.systemd.manager import UserManager

from outlast_supervisor.schedulers.systemd import unit_name


class Service:
    """A run and its unit."""

    def __init__(self, manager: UserManager, run: Run, unit: str) -> None:
        self.manager, self.run, self.unit = manager, run, unit

    def install(self, *words: str) -> Ended:
        """`outlast systemd JOB --install`."""
        return self.manager.outlast("systemd", str(self.run.job_file), "--install", *words)

    def started(self, **wanted: str) -> dict[str, str]:
        """Install and start it, and wait until the unit is so."""
        done = self.install("--now")
        assert done.code == 0, done.err
        return self.until(**wanted)

    def until(self, **wanted: str) -> dict[str, str]:
        return self.manager.until(self.unit, **wanted)

    def close(self) -> None:
        # as a power cut, not as a stop: a test that failed is not waited for
        self.manager.ctl("kill", "--signal=KILL", self.unit)
        self.manager.ctl("stop", self.unit)
        self.run.close()


MakeService = Callable[..., Service]
QUICK = "[Service]\nRestartSec=100ms\n"
"""A drop-in: a real restart waits ten seconds."""


@pytest.fixture(scope="session")
def manager() -> Iterator[UserManager]:
    made = UserManager()
    yield made
    made.close()


@pytest.fixture
def make_service(tmp_path: Path, manager: UserManager) -> Iterator[MakeService]:
    """Makes runs with a unit each: ``make_service(job, drop_in)``; the job has a name of its own."""
    made: list[Service] = []

    def make(job: Mapping[str, Any], drop_in: str = QUICK) -> Service:
        name = f"{job.get('name', 'job')}-{os.getpid()}-{tmp_path.name}"
        run = Run(tmp_path / f"{len(made) + 1}", {"signals": "native", **job, "name": name})
        service = Service(manager, run, unit_name(name))
        made.append(service)
        manager.drop_in(service.unit, drop_in)
        return service

    yield make
    for service in made:
        service.close()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The undisturbed run of the toy, once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    return make_reference((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reference")
