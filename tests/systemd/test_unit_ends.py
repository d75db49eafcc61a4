"""How a run ends is what its unit shows: done, held, or waiting for another supervisor."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.harness import OUTLAST, PATIENCE
from tests.realparts import needs
from tests.systemd.conftest import QUICK, MakeService, Service

pytestmark = needs("systemd", "namespaces")

FOREVER = ["/bin/sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.05; done"]


def test_done_stays_done(make_service: MakeService) -> None:
    """A run that is done is an inactive unit without a failure, and a start at the next boot changes nothing."""
    service = make_service({"command": ["true"]})
    for _ in ("the run", "the next boot"):
        service.started(ActiveState="inactive", Result="success", ExecMainStatus="0", NRestarts="0")
        assert service.run.attempts() == [1]


def test_given_up_is_a_failure_and_stays_one(make_service: MakeService) -> None:
    """A run that is given up is a failed unit: it is not started again by systemd, nor at the next boot."""
    service = make_service({"command": ["/bin/sh", "-c", "exit 3"], "restart": {"never_on": [3]}})
    for _ in ("the run", "the next boot"):
        service.install("--now")
        service.until(ActiveState="failed", Result="exit-code", ExecMainStatus="70", NRestarts="0")
        assert service.run.attempts() == [1]


def test_a_wrong_job_file_is_a_failure(make_service: MakeService) -> None:
    """What only a person can mend is not tried for ever."""
    service = make_service({"command": ["true"]})
    assert service.install().code == 0
    service.run.job_file.write_text("name: [")
    assert service.manager.ctl("start", service.unit).code != 0
    service.until(ActiveState="failed", Result="exit-code", ExecMainStatus="64", NRestarts="0")


def test_a_run_that_another_supervisor_has_is_waited_for(make_service: MakeService) -> None:
    """Started by hand before, the run is taken over by its unit as soon as that supervisor ends, however often
    systemd has to try."""
    # a limit of starts would end that at the second
    service = make_service({"command": FOREVER}, f"[Unit]\nStartLimitBurst=1\n{QUICK}")
    run, manager = service.run, service.manager
    with by_hand(service) as supervisor:
        run.until(run.attempts, "the attempt of the supervisor by hand")
        service.install("--now")
        run.until(lambda: int(manager.show(service.unit)["NRestarts"]) >= 2, "two more tries")
        assert run.attempts() == [1]
        pid = run.until_status(lambda status: True, "the supervisor's name")["supervisor"].split(":")[0]
        assert manager.enter("kill", "-TERM", pid).code == 0
        assert supervisor.wait(PATIENCE) == 75
    service.until(ActiveState="active", SubState="running")
    run.until(lambda: run.attempts() == [1, 2], "the unit's attempt")
    manager.ctl("stop", service.unit)
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="75")
    run.nothing_left()


@contextlib.contextmanager
def by_hand(service: Service) -> Iterator[subprocess.Popen[bytes]]:
    """`outlast run` beside the manager's services, where it can be seen from them."""
    command = [*service.manager.entering, OUTLAST, "run", "-q", str(service.run.job_file)]
    with subprocess.Popen(command, env=service.manager.env, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def test_a_unit_that_starts_before_its_disk_is_mounted_begins_once_it_is(
    make_service: MakeService, tmp_path: Path
) -> None:
    """As at a boot with nofail in fstab, for which no user's unit waits: nothing begins in the folder below."""
    disk, table = tmp_path / "disk", tmp_path / "fstab"
    disk.mkdir()
    table.write_text(f"tmpfs {disk} tmpfs nofail\n")
    service = make_service({"command": ["/bin/true"], "run_dir": str(disk / "run")})
    enter = service.manager.enter
    assert enter("mount", "--bind", str(table), "/etc/fstab").code == 0
    try:
        refused = service.install("--now")
        assert refused.code == 1, refused.err
        assert f'"{service.manager.units / service.unit}" is there all the same' in refused.err
        service.until(ExecMainStatus="75")
        assert list(disk.iterdir()) == []
        assert enter("mount", "-t", "tmpfs", "tmpfs", str(disk)).code == 0
        service.until(ActiveState="inactive", Result="success", ExecMainStatus="0")
    finally:
        enter("umount", "/etc/fstab")
    assert list(disk.iterdir()) == [], "it began on the disk, which only that namespace has"
    enter("umount", str(disk))
