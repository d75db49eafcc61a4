"""A process that waits to become the worker: it has imported what takes long, and then runs the script as Python would.

Started by the supervisor, with signals blocked, KILL as parent-death signal and a socket whose number is its
argument. It says when it is ready, waits, and is sent the worker's place: environment, descriptors, mask. It looks once
more whether it still fits, answers, and is the worker from then on. Without a supervisor it ends.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from outlast_jobs.contract import Env
from outlast_jobs.pythoncommand import PythonCommand, parse_python
from outlast_worker import becoming
from outlast_worker.warming import Files, Unfit, memory, warm

MOST = 1 << 20  # bytes of an order: the environment is most of it
_PR_SET_PDEATHSIG = 1
_NICE = 10


def main() -> None:
    """Warm up, wait, become the worker. Returns when the script has."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    asked = json.loads(channel.recv(MOST))
    command = parse_python(asked["command"])
    if isinstance(command, str):
        _refuse(channel, command)
    files = Files(command)
    becoming.set_path(command)
    _warm_up(channel, asked["preload"])
    files.note_modules()
    _say(channel, {"ready": True, "memory": memory()})
    order, (log, alive, *buffer) = _receive(channel)
    if (why := files.changed(order["env"].get("PATH"))) is not None:
        _refuse(channel, why)
    _take_place(order, log, alive)
    if buffer:  # under another number than the supervisor's
        os.set_inheritable(buffer[0], True)
        os.environ[Env.BUFFER] = f"{buffer[0]}:{os.fstat(buffer[0]).st_ino}"
    _say(channel, {"went": True})
    channel.close()
    del channel, files, asked
    # only now: what the supervisor sends to the worker that it has been told of must find the worker's mask
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    becoming.run(command, order["command"])


def _warm_up(channel: socket.socket, preload: list[str]) -> None:
    """In a thread, since a nice value belongs to one and nobody but root can take it back."""
    failed: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            warm(preload)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="outlast-warm")
    thread.start()
    thread.join()
    if failed:
        error = failed[0]
        if isinstance(error, Unfit):
            _refuse(channel, str(error))
        import traceback

        traceback.print_exception(error)
        _refuse(channel, f"a module of preload can't be imported: {type(error).__name__}: {error}")


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, ancillary, _, _ = channel.recvmsg(MOST, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not data:
        os._exit(0)  # nobody is there who could use us
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    order = json.loads(data)
    if len(found) not in (2, 3):
        _refuse(channel, "the log and the lock did not arrive")
    return order, list(found)


def _take_place(order: dict[str, Any], log: int, alive: int) -> None:
    """Everything that an exec would have given to a new process."""
    for number in signal.valid_signals():  # what came while we were nobody is not the worker's
        while number in signal.sigpending() and signal.sigtimedwait({number}, 0) is not None:
            pass
    os.chdir(order["workdir"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdout.flush()
    sys.stderr.flush()
    _hand_over_output(log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(alive, True)
    # one that has died before this has killed us: KILL is what a standby's supervisor leaves it with
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(order["death"]), 0, 0, 0)


def _hand_over_output(log: int) -> None:
    """What was printed while warming up stands in the log of the worker that is made of it."""
    with contextlib.suppress(OSError):
        at = 0
        while piece := os.pread(1, 1 << 16, at):
            at += os.write(log, piece)


def _say(channel: socket.socket, words: dict[str, Any]) -> None:
    try:
        channel.send(json.dumps(words).encode())
    except OSError:
        os._exit(0)


def _refuse(channel: socket.socket, why: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    _say(channel, {"refused": why[:2000]})
    os._exit(1)


__all__ = ["MOST", "PythonCommand", "main"]
