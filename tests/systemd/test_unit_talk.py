"""What passes between systemd and the supervisor while it runs: watchdog, reload, a longer stop."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import yaml
from tests.e2e.harness import PATIENCE
from tests.realparts import needs
from tests.systemd.conftest import MakeService
from tests.waiting import wait_until

from outlast_jobs import events

pytestmark = needs("systemd", "namespaces")

FOREVER = ["/bin/sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.05; done"]
SILENCE = 2.0  # seconds: the watchdog's
HANG = """
import ctypes, os, signal, sys, threading, time

def hold_the_lock_of_the_interpreter():
    # one that came to this thread would end the pause, and give the others a turn
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while not os.path.exists({file!r}):
        time.sleep(0.02)
    os.remove({file!r})
    while True:
        ctypes.PyDLL(None).pause()

if "outlast_supervisor.cli" in sys.orig_argv:
    threading.Thread(target=hold_the_lock_of_the_interpreter, daemon=True).start()
"""


def saving(after: float, mark: Path) -> list[str]:
    """A worker that takes a while to save when it is told to stop."""
    script = f"trap 'sleep {after}; echo saved > \"$0\"; exit 75' TERM; while :; do sleep 0.05; done"
    return ["/bin/sh", "-c", script, str(mark)]


def test_the_watchdog_ends_a_loop_that_hangs_and_spares_one_that_was_stopped(
    make_service: MakeService, tmp_path: Path
) -> None:
    """Stopped by SIGTSTP a supervisor may be silent; when its loop hangs, what it supervised saves, and both
    are started again."""
    mark, hang = tmp_path / "saved", tmp_path / "hang"
    (tmp_path / "sitecustomize.py").write_text(HANG.format(file=str(hang)))
    service = make_service(
        {"command": saving(0.1, mark)},
        f"[Service]\nRestartSec=100ms\nWatchdogSec={SILENCE}\nTimeoutAbortSec=2\n"
        f"Environment=PYTHONPATH={tmp_path}\n",
    )
    manager, run = service.manager, service.run
    main = service.started(ActiveState="active")["MainPID"]
    run.until(run.of_attempts, "a worker")

    manager.signal(service.unit, signal.SIGTSTP)
    service.until(WatchdogUSec="0")
    fed = int(manager.show(service.unit)["WatchdogTimestampMonotonic"]) / 1e6
    wait_until(lambda: time.monotonic() > fed + 2 * SILENCE, PATIENCE, "a silence that is too long")
    assert manager.show(service.unit)["MainPID"] == main
    manager.signal(service.unit, signal.SIGCONT)
    service.until(WatchdogUSec="2s", ActiveState="active", MainPID=main, NRestarts="0")
    assert run.attempts() == [1]

    hang.touch()
    service.until(ActiveState="active", NRestarts="1")
    assert mark.exists()
    run.until(lambda: run.attempts() == [1, 2], "the next attempt")


def saving_with_helper(mark: Path) -> list[str]:
    """One that cannot save without a process of its own, which knows nothing of signals."""
    script = (
        "trap 'sleep 0.3; kill -0 $helper && echo saved > \"$0\"; kill $helper; exit 75' TERM; "
        "sleep 1000 & helper=$!; "
        "while :; do sleep 0.05; done"
    )
    return ["/bin/sh", "-c", script, str(mark)]


def test_a_stop_is_for_the_supervisor_alone(make_service: MakeService, tmp_path: Path) -> None:
    """What a worker needs to save is there when it is told to: systemd signals nobody but the supervisor. Until then
    `systemctl status` shows the attempt and what it is doing."""
    mark = tmp_path / "saved"
    service = make_service({"command": saving_with_helper(mark)})
    service.started(ActiveState="active")
    service.run.until(lambda: len(service.run.of_attempts()) >= 2, "a worker with its helper")
    service.until(StatusText="attempt 1: running, step 0")
    assert service.manager.ctl("stop", service.unit).code == 0
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="75")
    assert mark.exists()
    service.run.nothing_left()


def test_a_notice_from_elsewhere_ends_no_run(make_service: MakeService) -> None:
    """A supervisor that was told to save and end by anybody but systemd is started again."""
    service = make_service({"command": FOREVER})
    run = service.run
    service.started(ActiveState="active")
    run.until(run.of_attempts, "a worker")
    service.manager.signal(service.unit, signal.SIGTERM)
    service.until(ActiveState="active", NRestarts="1", Result="success")
    run.until(lambda: run.attempts() == [1, 2], "the next attempt")


def test_a_reload_reads_the_job_file(make_service: MakeService, tmp_path: Path) -> None:
    """`systemctl reload` has the job file read again; a stop then has the time that the new one gives, although
    the unit says less."""
    mark = tmp_path / "saved"
    service = make_service(
        {"command": saving(2.5, mark), "stop": {"grace": "1s"}}, "[Service]\nTimeoutStopSec=1\n"
    )
    manager, run = service.manager, service.run
    service.started(ActiveState="active")
    run.until(run.of_attempts, "a worker")
    told = yaml.safe_load(run.job_file.read_text())
    run.job_file.write_text(yaml.safe_dump({**told, "stop": {"grace": "30s"}}))
    assert manager.ctl("reload", service.unit).code == 0
    run.until(lambda: run.records(events.JOB_CHANGED), "the record of a job file that was read again")
    assert [r.data["changes"] for r in run.records(events.JOB_CHANGED)] == [["read again for SIGHUP"]]
    service.until(ActiveState="active", SubState="running")

    assert manager.ctl("stop", service.unit).code == 0
    service.until(ActiveState="inactive", Result="success", ExecMainStatus="75")
    assert mark.exists()
    run.nothing_left()
