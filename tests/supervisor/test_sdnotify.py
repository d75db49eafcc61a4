"""What the supervisor tells a service manager, said to a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor.events import Chosen
from outlast_supervisor.hooks import Hooks
from outlast_supervisor.sdnotify import LAST_ACTS, MINE, ServiceManager
from outlast_supervisor.spawn import worker_environment
from outlast_supervisor.states import Ledger, Live, Stopping


@pytest.fixture
def service(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "manager"))
        found.setblocking(False)
        yield found


@pytest.fixture
def manager(service: socket.socket) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": service.getsockname(), "WATCHDOG_USEC": "6000000"})


def heard(service: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(service.recv(4096).decode())
        except BlockingIOError:
            return found


def test_ready_is_said_once(service: socket.socket, manager: ServiceManager) -> None:
    """A later status is no READY, which would end a reload that is under way."""
    for line in ("starting", "running\nstep 3"):
        manager.status(line)
    assert heard(service) == ["READY=1\nSTATUS=starting", "STATUS=running step 3"]


def test_a_ready_that_is_lost_is_said_again(tmp_path: Path) -> None:
    """A service manager that did not listen at first hears of the start all the same."""
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "manager")})
    manager.status("starting")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(tmp_path / "manager"))
        service.setblocking(False)
        manager.status("running")
        assert heard(service) == ["READY=1\nSTATUS=running"]


def test_a_reload_is_bracketed(service: socket.socket, manager: ServiceManager) -> None:
    """RELOADING with the monotonic time, which newer versions of systemd want, and READY at its end."""
    manager.status("running")
    manager.reloading()
    manager.reloaded()
    _, begun, done = heard(service)
    assert begun.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert done == "READY=1"


def test_a_reload_before_the_start_is_complete_completes_nothing(
    service: socket.socket, manager: ServiceManager
) -> None:
    """Whoever reads a job file again while it starts is not ready by that."""
    manager.reloading()
    manager.reloaded()
    manager.status("starting")
    assert [text.split("=")[0] for text in heard(service)] == ["RELOADING", "READY"]


def test_who_stands_still_on_purpose_may_be_silent(service: socket.socket, manager: ServiceManager) -> None:
    """The watchdog is off while the process is stopped by SIGTSTP, and as before afterwards."""
    manager.stand_still()
    manager.go_on()
    assert heard(service) == ["WATCHDOG_USEC=0", "WATCHDOG_USEC=6000000\nWATCHDOG=1"]


def test_without_a_watchdog_none_is_set_up(service: socket.socket) -> None:
    """A unit without WatchdogSec gets none by a stop and a continuation."""
    manager = ServiceManager({"NOTIFY_SOCKET": service.getsockname()})
    manager.stand_still()
    manager.go_on()
    assert heard(service) == []


def test_a_stop_may_take_what_the_state_allows(service: socket.socket, manager: ServiceManager) -> None:
    """Each new bound is told once; after SIGKILL there is none, and systemd's own limit counts."""
    me = ProcessIdentity.current()
    chosen = Chosen(1, None, None, 0, True, "", 0)
    live = Live(1, me, chosen, 0.0, 0.0, "train", 0.0, 0.0, 0, "", 0)
    for kill_at in (140.0, 140.0, 160.0, None):
        manager.leaving(Stopping(Ledger(), live, "notice", "", 138.0, kill_at), 100.0)
    assert heard(service) == [
        f"EXTEND_TIMEOUT_USEC={int((40 + LAST_ACTS) * 1e6)}",
        f"EXTEND_TIMEOUT_USEC={int((60 + LAST_ACTS) * 1e6)}",
    ]


def test_workers_and_hooks_have_no_part_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is given what systemd says to the supervisor alone."""
    for name in MINE:
        monkeypatch.setenv(name, "systemd's")
    assert worker_environment(dict.fromkeys(MINE, "systemd's"), {}, {}) == {"PYTHONUNBUFFERED": "1"}
    (tmp_path / "logs").mkdir()
    hooks = Hooks({"done": "env"}, tmp_path)
    hooks.start("done", "", 0.0)
    (pid,) = hooks.pids
    os.waitpid(pid, 0)
    told = (tmp_path / "logs/hooks.log").read_text()
    assert "OUTLAST_HOOK=done" in told
    assert "systemd's" not in told
