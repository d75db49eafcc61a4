"""One run under a real service manager, against all that can happen to it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.harness import kill
from tests.e2e.reference import STEPS, Reference, toy
from tests.realparts import needs
from tests.systemd.conftest import MakeService, Service

from outlast_jobs import events
from outlast_jobs.contract import Env

pytestmark = needs("systemd", "namespaces")

SILENCE = 4.0  # seconds: the watchdog's, long for a slow machine; the worker trains all the while


def test_a_run_outlives_all_that_happens_to_its_service(
    make_service: MakeService, reference: Reference
) -> None:
    """Supervisor killed, worker killed, supervisor stopped dead, unit stopped and started: the run ends as if
    nothing had happened, and only what a kill of the worker itself costs is trained twice."""
    service = make_service(
        toy("--step-seconds", 0.025, save={"every_steps": 20}, signals="outlast"),
        f"[Service]\nRestartSec=100ms\nWatchdogSec={SILENCE}\n",
    )
    run, manager = service.run, service.manager
    service.started(ActiveState="active", SubState="running")
    run.until_step(20)
    assert_nothing_leaks(service)

    def after(what: Callable[[], object], step: int) -> int:
        """Do it, wait until the next attempt is at this step; from which step it went on."""
        before = run.attempts()[-1]
        what()
        run.until(lambda: run.attempts()[-1] > before, "the next attempt")
        run.until_step(step, before + 1)
        return int(run.metrics(before + 1)[0]["step"])

    def last(attempt: int) -> int:
        return int(run.metrics(attempt)[-1]["step"])

    began = after(lambda: manager.signal(service.unit, signal.SIGKILL), 50)
    assert began == last(1) + 1, f"the worker was not let save\n{run.report()}"
    service.until(NRestarts="1")

    began = after(lambda: [kill(pid) for pid in run.of_attempts()], 80)
    assert began <= last(2) + 1
    service.until(NRestarts="1")

    began = after(lambda: manager.signal(service.unit, signal.SIGSTOP), 110)
    assert began == last(3) + 1, f"the worker was not let save\n{run.report()}"
    service.until(NRestarts="2")

    assert manager.ctl("stop", service.unit).code == 0
    service.until(ActiveState="inactive", SubState="dead", Result="success", ExecMainStatus="75")
    run.nothing_left()
    assert run.verified()[0].index.step == last(4) < STEPS  # type: ignore[union-attr]

    assert manager.ctl("start", service.unit).code == 0
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="0", NRestarts="0")
    assert run.metrics(5)[0]["step"] == last(4) + 1
    reference.hold_end(run)
    assert_one_log(service, 5)

    # as at the next boot
    assert manager.ctl("start", service.unit).code == 0
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="0", NRestarts="0")
    assert run.attempts()[-1] == 5


def assert_nothing_leaks(service: Service) -> None:
    """The worker has a socket of its own to speak to, and no watchdog to feed."""
    (pid, *_) = service.run.of_attempts()
    environ = dict(
        pair.decode(errors="replace").split("=", 1)
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"=" in pair
    )
    assert "outlast-" in environ[Env.NOTIFY_SOCKET]
    names = {"WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_PID"}
    assert not names & environ.keys()


def assert_one_log(service: Service, attempts: int) -> None:
    """`outlast logs` shows every attempt once and in order."""
    shown = service.manager.outlast("logs", str(service.run.directory.path))
    assert shown.code == 0, shown.err
    headers = [int(n) for n in re.findall(r"^--- outlast: attempt (\d+) ", shown.out, re.MULTILINE)]
    assert headers == list(range(1, attempts + 1))
    assert [r.data["code"] for r in service.run.records(events.SUPERVISOR_STOPPED)] == [75, 75, 0]
