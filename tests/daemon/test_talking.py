"""What a daemon says and hears: systemd, JSON, quiet, signals from the first moment, and no terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import time

import pytest
from tests.daemon.yard import ENDS, PATIENCE, STAYS, Yard
from tests.e2e.harness import OUTLAST, children
from tests.realparts import needs


def test_systemd_is_told(yard: Yard) -> None:
    """READY comes once the folder was looked at, the watchdog is fed, and no supervisor speaks in its name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    listener.bind(str(yard.home / "n"))
    listener.settimeout(PATIENCE)
    yard.env |= {"NOTIFY_SOCKET": str(yard.home / "n"), "WATCHDOG_USEC": "600000"}
    yard.write("a")
    daemon = yard.start()
    heard: list[tuple[int, str]] = []

    def hear(text: str) -> None:
        while not any(text in said for _, said in heard):
            data, ancillary, _, _ = listener.recvmsg(4096, socket.CMSG_SPACE(12))
            pid = int.from_bytes(ancillary[0][2][:4], "little") if ancillary else 0
            heard.append((pid, data.decode()))

    with listener:
        hear("READY=1")
        hear("STATUS=1 of 1 jobs run")
        yard.until_running("a")
        heard.clear()
        hear("WATCHDOG=1")
        yard.remove("a")
        hear("STATUS=0 of 0 jobs run")
        daemon.terminate()
        hear("STOPPING=1")
    assert {pid for pid, _ in heard} == {daemon.pid}


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.4])
def test_a_signal_in_the_first_moments_ends_it(yard: Yard, delay: float) -> None:
    """SIGTERM at any time after the start ends the daemon."""
    yard.write("a")
    daemon = yard.start()
    time.sleep(delay)  # the instant is what the test is about
    daemon.terminate()
    assert daemon.wait(PATIENCE) in (0, -signal.SIGTERM)


def test_json_and_quiet(yard: Yard) -> None:
    """--json is a JSON object an event on stdout; --quiet says what is refused and nothing else."""
    yard.write("a", ENDS)
    yard.write("b", keeep=1)
    daemon = yard.start("--json")
    yard.until(lambda: '"done"' in yard.said(), "the end of the job")
    daemon.terminate()
    daemon.wait(PATIENCE)
    told = [json.loads(line) for line in yard.said().splitlines()]
    events = [(line["event"], line["file"]) for line in told]
    assert events[0] == ("watching", "")
    assert ("started", "a.yaml") in events
    assert {"event": "done", "file": "a.yaml", "text": "done", "code": 0}.items() <= told[
        events.index(("done", "a.yaml"))
    ].items()
    quiet = yard.start("--quiet")
    yard.until(lambda: "keeep" in yard.said(), "the refusal")
    quiet.terminate()
    quiet.wait(PATIENCE)
    assert len(yard.said().splitlines()) == 1


def test_a_reader_that_stops_reading_holds_no_daemon(yard: Yard) -> None:
    """Whoever takes what is said and reads no more of it does not keep the daemon from its jobs, nor from its end."""
    for number in range(60):
        yard.write(f"bad{number}", keeep=1)
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    command = [OUTLAST, "daemon", str(yard.folder)]
    daemon = subprocess.Popen(command, cwd=yard.home, env=yard.env, stdout=write_end, stderr=write_end)
    yard.daemons.append(daemon)
    yard.write("a", STAYS)
    yard.until_running("a")
    yard.until(lambda: len(yard.states()) == 61, "all to be known")
    yard.write("b", ENDS)
    yard.until(lambda: yard.lines("b"), "a job that is started unheard")
    daemon.terminate()
    assert daemon.wait(PATIENCE) == 0
    os.close(write_end)
    os.close(read_end)


def test_it_outlives_a_terminal_under_nohup(yard: Yard) -> None:
    """With SIGHUP ignored, the end of its terminal changes nothing; without, it ends, and its trainings go on."""
    yard.write("a", STAYS)
    for ignored in (True, False):
        (yard.folder / ".outlast" / "state.json").unlink(missing_ok=True)
        master, slave = pty.openpty()
        daemon = subprocess.Popen(
            ["setsid", "-c", *(["nohup"] if ignored else []), OUTLAST, "daemon", str(yard.folder)],
            cwd=yard.home,  # nohup writes there
            env=yard.env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        yard.daemons.append(daemon)
        os.close(slave)
        yard.until_running("a")
        yard.until(lambda: yard.states().get("a") == "running", "the daemon")
        worker = yard.worker("a")
        os.close(master)
        if ignored:
            yard.write("b", ENDS)
            yard.until(lambda: yard.lines("b"), "a job that is started without a terminal")
            daemon.kill()
        assert daemon.wait(PATIENCE) == (-signal.SIGKILL if ignored else 0)
        assert yard.worker("a") == worker


@needs("namespaces")
def test_as_the_first_process_of_a_container_it_takes_nothing_with_it_unsaved(yard: Yard) -> None:
    """The kernel ends a pid namespace with its first process, so that one has everything save and stop before."""
    yard.write("a")
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    with (yard.home / "daemon-01.txt").open("wb") as log:
        unshare = subprocess.Popen(
            [*container, OUTLAST, "daemon", str(yard.folder)], env=yard.env, stdout=log, stderr=log
        )
    yard.daemons.append(unshare)
    yard.until(lambda: yard.lines("a"), "the worker")
    (first,) = children(unshare.pid)
    os.kill(first, signal.SIGTERM)
    assert unshare.wait(PATIENCE) == 75, yard.said()
    assert "not done, stopped by SIGTERM" in yard.supervisor_log("a")
