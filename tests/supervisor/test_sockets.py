"""Folders of the notify socket: those of killed supervisors are removed, and no other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Run
from tests.realparts import needs

from outlast_supervisor.notify import NotifySocket, sweep_sockets


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets are made; its path is short."""
    with tempfile.TemporaryDirectory(prefix="socks-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def killed() -> Path:
    """What a supervisor that was killed leaves."""
    made = NotifySocket()
    made.socket.close()
    return made.folder


def test_what_a_killed_supervisor_left_is_removed(parent: Path) -> None:
    """A socket that nobody listens on goes, with its folder; one that is listened on stays and works."""
    left, living = [killed() for _ in range(3)], NotifySocket()
    try:
        assert sweep_sockets() >= 3  # and in /tmp whatever else was killed
        assert not any(folder.exists() for folder in left)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"READY=1", living.path)
        assert living.receive()
    finally:
        living.close()


def test_what_is_not_such_a_folder_stays(parent: Path) -> None:
    """Other names, more than a socket, other modes, a link, and one that is about to be bound are left alone."""
    other, more, open_to_all, link, fresh = (parent / f"outlast-{name}" for name in _NAMES)
    killed().rename(parent / "someones-12345678")
    killed().rename(more)
    (more / "notes").touch()
    killed().rename(open_to_all)
    open_to_all.chmod(0o755)
    other.mkdir(0o700)
    (other / "file").touch()
    link.symlink_to(other)
    fresh.mkdir(0o700)
    before = sorted(os.listdir(parent))
    sweep_sockets()
    assert sorted(os.listdir(parent)) == before


def test_one_that_never_got_a_socket_is_removed_in_the_end(parent: Path) -> None:
    """A folder that was made long ago and is empty belongs to nobody."""
    empty = parent / "outlast-abcdefgh"
    empty.mkdir(0o700)
    os.utime(empty, (0, 0))
    sweep_sockets()
    assert not empty.exists()


def test_the_next_start_removes_what_the_killed_one_left(parent: Path, tmp_path: Path) -> None:
    """After a supervisor was killed the next one leaves no folder of a socket, neither its own nor the other's."""
    run = Run(tmp_path, {"command": ["sleep", "1000"], "signals": "native", "stop": {"grace": "5s"}})
    try:
        first = run.start()
        first.worker()
        first.kill()
        [left] = parent.iterdir()
        second = run.start()
        second.worker()
        second.until(lambda: not left.exists(), "the end of what was left")
        second.send(signal.SIGTERM)
        assert second.wait() == 75
        assert not list(parent.iterdir())
    finally:
        run.close()


@needs("namespaces")
def test_a_socket_is_not_made_where_a_logout_takes_it_away() -> None:
    """Of what systemd makes for a user's session nothing is needed: a trainer that still imports could not connect."""
    place = 'mount -t tmpfs run /run && mkdir -p /run/user/7 && exec "$@"'
    code = "from outlast_supervisor.notify import NotifySocket as N; n = N(); print(n.folder); n.close()"
    made = subprocess.run(
        ["unshare", "--mount", "sh", "-c", place, "sh", sys.executable, "-c", code],
        env={**os.environ, "XDG_RUNTIME_DIR": "/run/user/7"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert made.stdout.startswith("/tmp/outlast-")


_NAMES = ("otherone", "moreinit", "opentoal", "linklink", "freshone")
