"""A worker without torch that speaks the protocol by hand, and can have a process of its own flood the socket.

It writes each step to `steps`, how often it was asked for a save to `saves`, and, where told to flood with N
datagrams, `flooded` once all of them were sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from types import FrameType

told: set[int] = set()
FLOOD = [
    b"X_OUTLAST_STEP=%d\nX_OUTLAST_LOSS=0.5",
    b"READY=1\nX_OUTLAST_PROTOCOL=1\nX_OUTLAST_RANK=%d",
    b"X_OUTLAST_PHASE=train%d",
    b"X_OUTLAST_SAVING=%d",
    b"X_OUTLAST_DRIFT=[[[[%d",
    b"STATUS=\xff\xfe%d",
    b"X_OUTLAST_FAILURE={\"step\":%d",
]  # fmt: skip


def note(number: int, frame: FrameType | None) -> None:
    told.add(number)


def speak(sock: socket.socket, text: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue or a dead supervisor costs no step
        sock.send(text)


def flood(number: int) -> None:
    """Send so many, each waited for, so that none is lost for want of room."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.connect(os.environ["NOTIFY_SOCKET"])
    # its steps lie behind the trainer's own: they must not count as the trainer's progress, nor bring a save
    for n in range(number):
        sock.send(FLOOD[n % len(FLOOD)] % 0)
    with open("flooded", "w") as file:
        file.write(str(number))


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.connect(os.environ["NOTIFY_SOCKET"])
    sock.setblocking(False)
    speak(sock, b"READY=1\nX_OUTLAST_PROTOCOL=1\nX_OUTLAST_RANK=0\nX_OUTLAST_STEP=0")
    if len(sys.argv) > 1 and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        flood(int(sys.argv[1]))
        os._exit(0)
    step, saves = 0, 0
    while signal.SIGTERM not in told:
        time.sleep(0.005)
        step += 1
        speak(sock, b"X_OUTLAST_STEP=%d\nX_OUTLAST_LOSS=0.5\nX_OUTLAST_PHASE=train" % step)
        if signal.SIGUSR1 in told:
            told.discard(signal.SIGUSR1)
            saves += 1
            name = b"step-%09d.a0001" % step
            speak(sock, b"X_OUTLAST_SEALED=%s\nX_OUTLAST_STEP=%d\nX_OUTLAST_SECONDS=0.1" % (name, step))
        for name, value in (("steps", step), ("saves", saves)):
            with open(name + ".new", "w") as file:
                file.write(str(value))
            os.replace(name + ".new", name)
    speak(sock, b"X_OUTLAST_EXIT=saved")
    sys.exit(75)


if __name__ == "__main__":
    main()
