"""The notify socket under a flood, from ours and from strangers, and with no room: training and supervision go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.e2e.harness import Run, Supervisor
from tests.faults.scale import scaled, told
from tests.waiting import wait_until

from outlast_supervisor.notify import NotifySocket

NUMBER = scaled(6_000, 100_000)
SECONDS = scaled(60, 400)
SCRIPT = (Path(__file__).parent / "scripts" / "talker.py").read_text()
MOST_GROWTH = 8 << 20  # bytes


def start(runs: list[Run], folder: Path, *words: str) -> tuple[Run, Supervisor]:
    """A run whose worker trains by now."""
    run = Run(folder, {"command": [sys.executable, "-S", "train.py", *words]}, script=SCRIPT)
    runs.append(run)
    supervisor = run.start()
    supervisor.until(lambda: number(run, "steps") > 2, "steps")
    run.until_status(lambda status: status["state"] == "running" and status["phase"] == "train", "the attach")
    return run, supervisor


def number(run: Run, name: str) -> int:
    """What the worker wrote there last."""
    try:
        return int((run.folder / name).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :][:1] == b"T"


def address(supervisor: Supervisor) -> str:
    """Where the supervisor listens, as its worker knows it."""
    environ = Path(f"/proc/{supervisor.worker()}/environ").read_bytes().split(b"\0")
    return next(line.partition(b"=")[2].decode() for line in environ if line.startswith(b"NOTIFY_SOCKET="))


def still_well(run: Run, supervisor: Supervisor) -> None:
    """Steps advance, a signal comes through, a request is heard, the status is fresh."""
    before, saves = number(run, "steps"), number(run, "saves")
    sent = time.monotonic()
    supervisor.send(signal.SIGUSR1)

    def saved() -> bool:
        nonlocal sent
        if time.monotonic() - sent > 1.5:  # those that come in one second are one, and its answer may be lost
            sent = time.monotonic()
            supervisor.send(signal.SIGUSR1)
        return number(run, "saves") > saves

    supervisor.until(saved, "the save signal at the worker", SECONDS)
    supervisor.until(lambda: number(run, "steps") > before + 5, "more steps", SECONDS)
    shown = run.cli("status", str(run.directory.path))
    assert shown.code == 0, shown
    assert "running" in shown.out


def ends_well(supervisor: Supervisor) -> None:
    """TERM is a stop, and the worker's word is heard."""
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(SECONDS) == 75


def test_a_flood_from_a_process_of_the_worker_harms_nothing(tmp_path: Path, runs: list[Run]) -> None:
    """Tens of thousands of messages of our own: steps, signals, status and memory stay as they were."""
    run, supervisor = start(runs, tmp_path / "own", str(NUMBER))
    before = resident(supervisor.pid)
    while not number(run, "flooded"):
        still_well(run, supervisor)
    still_well(run, supervisor)
    assert resident(supervisor.pid) - before < MOST_GROWTH
    assert len(run.attempts()) == 1
    ends_well(supervisor)
    told("datagrams of the worker's own", NUMBER)


def test_a_flood_of_a_stranger_is_passed_over(tmp_path: Path, runs: list[Run]) -> None:
    """Garbage, false last words and false failures of a process that is not the attempt's change nothing."""
    run, supervisor = start(runs, tmp_path / "foreign")
    to, before = address(supervisor), resident(supervisor.pid)
    lies = [
        b"X_OUTLAST_EXIT=done",
        b"X_OUTLAST_REFUSED=go away",
        b'X_OUTLAST_BAD={"generation":"step-000000001.a0001","reason":"x"}',
        b"READY=1\nX_OUTLAST_PROTOCOL=1\nX_OUTLAST_STEP=999999",
        b"X_OUTLAST_SICK=1",
        b"\0" * 8000,
        os.urandom(9000),
        b"",
        b"=" * 500,
        b"\n" * 500,
    ]

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(to)
            for n in range(NUMBER):
                sock.send(lies[n % len(lies)])

    thread = threading.Thread(target=flood)
    thread.start()
    while thread.is_alive():
        still_well(run, supervisor)
    thread.join()
    still_well(run, supervisor)
    assert resident(supervisor.pid) - before < MOST_GROWTH
    assert not run.records("sick", "attempt_ended", "quarantined")
    assert len(run.records("attempt_attached")) == 1
    ends_well(supervisor)
    told("datagrams of a stranger", NUMBER)


def test_a_full_socket_costs_no_step(tmp_path: Path, runs: list[Run]) -> None:
    """While the supervisor stands still its socket fills up: the worker trains on, and is heard again later."""
    run, supervisor = start(runs, tmp_path / "full")
    to = address(supervisor)
    supervisor.send(signal.SIGSTOP)
    run.until(lambda: is_stopped(supervisor.pid), "a supervisor that reads no more")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(to)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                sock.send(b"STATUS=x")
        with pytest.raises(BlockingIOError):
            sock.send(b"STATUS=x")
    before = number(run, "steps")
    run.until(lambda: number(run, "steps") > before + 100, "steps beside a full socket")
    supervisor.send(signal.SIGCONT)
    still_well(run, supervisor)
    ends_well(supervisor)


_SEND = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.sendto(b"X_OUTLAST_EXIT=done", sys.argv[1])
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_another_user_is_not_heard() -> None:
    """Of a message from another uid nothing is read, even where its sender gets as far as the socket."""
    inbox = NotifySocket()
    try:
        os.chmod(inbox.folder, 0o711)
        os.chmod(inbox.path, 0o777)
        send = [sys.executable, "-c", _SEND, inbox.path]
        subprocess.run(
            ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *send], check=True
        )
        assert not inbox.receive()
        assert inbox.dropped == 1
        subprocess.run(send, check=True)
        assert [message.fields for message in inbox.receive()] == [{"X_OUTLAST_EXIT": "done"}]
    finally:
        inbox.close()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_another_user_does_not_get_as_far_as_the_socket() -> None:
    """The socket lies in a folder that only its user can enter."""
    inbox = NotifySocket()
    try:
        send = [sys.executable, "-c", _SEND, inbox.path]
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        found = subprocess.run([*user, *send], capture_output=True, text=True)
        assert "PermissionError" in found.stderr
        assert not inbox.receive()
    finally:
        inbox.close()


def test_a_message_cannot_name_another_sender() -> None:
    """The sender is who the kernel says, whatever pid stands in the message; one without credentials is dropped."""
    inbox = NotifySocket()
    try:
        wait_until(lambda: Path(inbox.path).exists(), 60, "the socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"MAINPID=1\nREADY=1", inbox.path)
        [message] = inbox.receive()
        assert message.pid == os.getpid()
    finally:
        inbox.close()
