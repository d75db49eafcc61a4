"""Notifications reach a datagram socket, and never cost the training anything."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast_worker.notify import LIMIT, Notifier, encode


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address)
        bound.settimeout(10)
        yield bound, address


def test_a_notification_is_one_datagram_of_lines(listener: tuple[socket.socket, str]) -> None:
    """KEY=VALUE, a line each, in one datagram."""
    bound, address = listener
    Notifier(address).send({"READY": 1, "X_OUTLAST_STEP": 500}, important=True)
    assert bound.recv(LIMIT + 1) == b"READY=1\nX_OUTLAST_STEP=500"


def test_a_value_can_not_forge_another_key() -> None:
    """Line ends within a value become blanks."""
    assert encode({"STATUS": "a\nX_OUTLAST_EXIT=done\r\0b"}) == b"STATUS=a X_OUTLAST_EXIT=done  b"


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 5_000, "\U0001f600" * 3_000])
def test_a_long_value_is_cut_to_the_limit(text: str) -> None:
    """No datagram is over the limit, other keys survive, and no character is cut in half."""
    data = encode({"X_OUTLAST_STEP": 7, "X_OUTLAST_FAILURE": text})
    assert LIMIT - 8 < len(data) <= LIMIT
    assert data.startswith(b"X_OUTLAST_STEP=7\n")
    data.decode()


def test_a_full_queue_never_blocks(listener: tuple[socket.socket, str]) -> None:
    """With nobody reading, a thousand sends return at once and are counted as lost."""
    _, address = listener
    notifier = Notifier(address)
    began = time.monotonic()
    for step in range(1000):
        notifier.send({"X_OUTLAST_STEP": step})
    assert time.monotonic() - began < 30
    assert 0 < notifier.lost < 1000
    assert not notifier.broken  # a full queue is no dead supervisor


def test_an_important_notification_waits_for_room(listener: tuple[socket.socket, str]) -> None:
    """While the queue is full an important one is tried again, until the reader makes room."""
    bound, address = listener
    notifier = Notifier(address)
    while not notifier.lost:
        notifier.send({"X_OUTLAST_STEP": 1})
    received: list[bytes] = []

    def read() -> None:
        while not received or b"READY" not in received[-1]:
            received.append(bound.recv(LIMIT))

    reader = threading.Thread(target=read)
    reader.start()
    notifier.send({"READY": 1}, important=True)
    reader.join(10)
    assert received[-1] == b"READY=1"


def test_steps_are_sent_ten_times_a_second_at_most(listener: tuple[socket.socket, str]) -> None:
    """What may be lost is held back to one in a tenth of a second, by the clock that was passed in."""
    _, address = listener
    now = [100.0]
    notifier = Notifier(address, clock=lambda: now[0])
    sent = 0
    for _ in range(1000):  # a step a millisecond for one second
        sent += notifier.send_often({"X_OUTLAST_STEP": 1})
        now[0] += 0.001
    assert sent == 10


@pytest.mark.parametrize("how", ["closed", "removed"])
def test_a_socket_without_a_listener_is_broken_and_raises_nothing(
    listener: tuple[socket.socket, str], how: str
) -> None:
    """A supervisor that is gone is noticed by the refused send; training goes on."""
    bound, address = listener
    notifier = Notifier(address)
    assert notifier.probe()
    bound.close()
    if how == "removed":
        os.unlink(address)
    notifier.send({"X_OUTLAST_STEP": 1}, important=True)
    assert notifier.broken
    assert not notifier.probe()


def test_without_a_socket_nothing_happens() -> None:
    """Outside a supervisor sends do nothing."""
    notifier = Notifier.from_env({})
    notifier.send({"READY": 1}, important=True)
    assert not notifier.broken


def test_a_forked_child_does_not_speak_for_the_trainer(listener: tuple[socket.socket, str]) -> None:
    """The receiver tells trainers by their process, so a child's sends are dropped."""
    bound, address = listener
    notifier = Notifier(address)
    child = os.fork()
    if child == 0:
        notifier.send({"READY": 1}, important=True)
        os._exit(0)
    os.waitpid(child, 0)
    notifier.send({"X_OUTLAST_STEP": 1})
    assert bound.recv(LIMIT) == b"X_OUTLAST_STEP=1"


def test_a_socket_that_is_removed_while_somebody_listens_is_still_reached(
    listener: tuple[socket.socket, str],
) -> None:
    """Logging out and cleaning /tmp take the socket's file, and not what was connected before."""
    bound, address = listener
    notifier = Notifier(address)
    assert notifier.probe()
    os.unlink(address)
    notifier.send({"X_OUTLAST_STEP": 1})
    assert notifier.probe()
    assert [bound.recv(LIMIT) for _ in range(2)][1] == b"X_OUTLAST_STEP=1"


def test_who_listens_at_the_same_place_later_is_found(listener: tuple[socket.socket, str]) -> None:
    """Once the first listener is gone the place is looked up again."""
    first, address = listener
    notifier = Notifier(address)
    assert notifier.probe()
    first.close()
    os.unlink(address)
    assert not notifier.probe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second:
        second.bind(address)
        notifier.send({"X_OUTLAST_STEP": 1})
        assert second.recv(LIMIT) == b"X_OUTLAST_STEP=1"
