"""The display: what a dead disk holds up is not waited for, and keeps nobody busy."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast_jobs.jobfile import job_from_command
from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.display import Display
from outlast_supervisor.launch import Launcher, policy_of
from outlast_supervisor.loop import Loop
from outlast_supervisor.rules_begin import begin
from outlast_supervisor.states import Ledger


class Journal:
    """One that is written as it should be."""

    unjournaled = False
    error = ""


class ByHand:
    """Stands where the helper is; nothing that is handed in ends by itself."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, tag: str, job: Callable[[], Any]) -> None:
        self.jobs.append(job)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager that wants a sign of life every six seconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "manager"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "manager"))
        monkeypatch.setenv("WATCHDOG_USEC", "6000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield manager


@pytest.fixture
def display(tmp_path: Path) -> Iterator[Display]:
    run = RunDirectory(tmp_path / "run")
    run.create()
    job = job_from_command(["true"], str(run.path), tmp_path)
    launcher = Launcher(run, "a" * 32, job, "digest", False)
    loop = Loop(policy_of(job, launcher), lambda text: None)
    loop.state, _ = begin(Ledger(), time.monotonic())
    yield Display(run, "a" * 32, loop, launcher, quiet=True, verbose=False)
    loop.close()


def test_a_status_that_is_never_written_does_not_keep_the_loop_turning(display: Display) -> None:
    """While a write hangs the next look is seconds away, and no second write is handed in."""
    helper, began = ByHand(), time.monotonic() + 1
    now = began
    display.show(now, helper, Journal())  # type: ignore[arg-type]
    for _ in range(5):
        due = display.next_due()
        assert due >= now + 1
        now = due
        display.show(now, helper, Journal())  # type: ignore[arg-type]
    assert len(helper.jobs) == 1


def test_a_service_manager_hears_of_the_loop_and_not_of_the_disk(
    service: socket.socket, display: Display
) -> None:
    """A supervisor whose status cannot be written is not killed by systemd's watchdog for that."""
    helper, began = ByHand(), time.monotonic() + 1
    now = began
    for _ in range(4):
        display.show(now, helper, Journal())  # type: ignore[arg-type]
        now = display.next_due()
    assert len(helper.jobs) == 1
    assert now <= began + 4 * 2.0
    heard = []
    while True:
        try:
            heard.append(service.recv(4096))
        except BlockingIOError:
            break
    assert heard.count(b"WATCHDOG=1") == 4
