"""What a supervisor keeps of its worker: one buffer, and no other descriptor, however many are sent."""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast_jobs import buffer_state
from outlast_jobs.buffer_state import State
from outlast_jobs.identity import ProcessIdentity
from outlast_jobs.memory import SPARE
from outlast_supervisor.intake import Intake, Trainers
from outlast_supervisor.keptbuffer import KeptBuffer
from outlast_supervisor.notify import NotifySocket

STORE = b"FDSTORE=1\nFDNAME=outlast-buffer"
IMAGES = 1 << 20


def memory(seals: int = buffer_state.SEALS, size: int = buffer_state.whole(IMAGES)) -> int:
    fd = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def copy(state: State) -> int:
    """A buffer that says this of its copy."""
    fd = memory()
    at = buffer_state.header_at(os.fstat(fd).st_size)
    os.pwrite(fd, buffer_state.header(10), at)
    os.pwrite(fd, bytes([state]), at + buffer_state.STATE_AT)
    return fd


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


class Ear:
    """The socket and the intake of a supervisor whose worker is this process."""

    def __init__(self) -> None:
        self.socket = NotifySocket()
        self.selector = selectors.DefaultSelector()
        self.intake = Intake(Trainers(self.selector), lambda text: None)
        self.intake.know(ProcessIdentity.current())

    def hear(self, message: bytes, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in fds))]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendmsg([message], rights if fds else [], 0, self.socket.path)
        for found in self.socket.receive():
            self.intake.events(found)

    def close(self) -> None:
        self.intake.buffer.drop()
        self.socket.close()
        self.selector.close()


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.close()


def test_one_buffer_is_kept_however_many_are_sent(ear: Ear) -> None:
    """Two hundred buffers, one after another: the last is kept, and no descriptor but that one stays open."""
    before = opened()
    for _ in range(200):
        fd = memory()
        ear.hear(STORE, fd)
        inode = os.fstat(fd).st_ino
        assert ear.intake.buffer.inode == inode
        assert not os.get_inheritable(ear.intake.buffer.fd)
        os.close(fd)
    assert opened() == before + 1
    kept = ear.intake.buffer.fd
    ear.hear(STORE, kept)
    assert (ear.intake.buffer.fd, opened()) == (kept, before + 1), "the same memory again is no second one"
    ear.hear(b"FDSTOREREMOVE=1\nFDNAME=outlast-buffer")
    assert opened() == before


def test_no_other_descriptor_stays_open(ear: Ear, tmp_path: Path) -> None:
    """Files, pipes, memory that can be cut, too small or too large, of another name, of a stranger, several at once."""
    before = opened()
    good = memory()
    end, other = os.pipe()
    file = os.open(tmp_path, os.O_RDONLY)
    odd = [end, file, memory(0), memory(fcntl.F_SEAL_SHRINK), memory(size=4096), memory(size=1 << 50)]
    for fd in odd:
        ear.hear(STORE, fd)
    for message in (
        b"FDSTORE=1\nFDNAME=x",
        b"FDSTORE=1",
        b"FDNAME=outlast-buffer",
        b"X_OUTLAST_PROBE=1",
        b"",
        b"\xff\xfe",
    ):
        ear.hear(message, good)
    for count in (2, 3, 50, 250):
        ear.hear(STORE, *[good] * count)
    for message in (STORE, b"FDSTORE=1\nFDNAME=x\nX_OUTLAST_STEP=1"):
        ear.intake._known.clear()
        ear.intake.expect("a" * 32, 3)
        for _ in range(20):
            ear.hear(message, good)
    assert ear.intake.buffer.fd == -1
    for fd in (good, other, *odd):
        os.close(fd)
    assert opened() == before


def test_only_a_copy_that_nobody_sealed_is_to_be_finished() -> None:
    """What its worker sealed, or copied in part, is not; nor is memory in which nothing stands."""
    kept = KeptBuffer()
    assert kept.unsealed == 0
    for state, unsealed in ((State.NONE, False), (State.COPIED, True), (State.SEALED, False)):
        assert kept.take(copy(state))
        assert (kept.unsealed > 0) == unsealed
    assert kept.take(memory())
    assert kept.unsealed == 0
    kept.drop()


def test_a_worker_is_lent_it_once_and_only_where_there_is_memory() -> None:
    """Who does not hand it back does not get it again; it is given up where a restore needs its memory."""
    kept = KeptBuffer()
    assert not kept.lend(1 << 60)
    assert kept.take(memory())
    inode = kept.inode
    assert kept.lend(2 * kept.size + SPARE)
    again = os.dup(kept.fd)
    assert kept.take(again)
    assert (kept.inode, kept.lent) == (inode, False)
    assert kept.lend(1 << 60)
    assert not kept.lend(1 << 60)
    assert kept.fd == -1
    assert kept.take(memory())
    assert not kept.lend(2 * kept.size + SPARE - 1)
    assert kept.fd == -1
    assert kept.take(memory())
    assert not kept.lend(None)
