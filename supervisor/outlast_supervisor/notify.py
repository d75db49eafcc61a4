"""The notify socket: systemd's datagram protocol, with the sender known by the kernel's word alone."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import socket
import stat
import struct
import time
from pathlib import Path

import msgspec
from msgspec import Struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(4)  # and room for one descriptor
_LIMIT = 8192  # bytes a datagram; more is cut and then refused
_PATH_LIMIT = 107  # sun_path of unix(7), less the terminating zero
_PREFIX = "outlast-"
_LONGEST = "/outlast-12345678/12345678"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")  # earlier versions used more than hex digits
_UNBOUND = 600.0  # seconds after which a folder without a socket gets none any more


class NoSocket(OSError):
    """No socket for notifications can be made: the text says where it was tried, and what helps."""


class Message(Struct, frozen=True):
    """One notification: the sender's pid in our own pid namespace, and its fields.

    Whoever takes the message owns the descriptor that came with it, and closes it. It is -1 where there is none.
    """

    pid: int
    fields: dict[str, str]
    fd: int = -1


class NotifySocket:
    """A datagram socket with a short random name in a folder that only this user can enter."""

    def __init__(self) -> None:
        self.folder = Path(_make_folder())
        self.path = str(self.folder / _random_name())
        try:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:
            _remove(self.folder)
            raise
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.setblocking(False)
        try:
            self.socket.bind(self.path)
        except OSError as error:
            self.close()
            raise _no_socket(error) from None
        self.dropped = 0  # datagrams that were not a notification

    def fileno(self) -> int:
        """For the selector."""
        return self.socket.fileno()

    def receive(self, at_most: int = 64) -> list[Message]:
        """All messages that wait, up to a number, so that a flood cannot hold the loop."""
        messages = []
        for _ in range(at_most):
            try:
                data, ancillary, flags, _ = self.socket.recvmsg(_LIMIT, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                break
            message = _parse(data, ancillary, bool(flags & socket.MSG_TRUNC))
            fds = _descriptors(ancillary)
            if message is None or len(fds) != 1 or flags & socket.MSG_CTRUNC:
                for fd in fds:  # no message that we heed has several
                    os.close(fd)
            else:
                message = msgspec.structs.replace(message, fd=fds[0])
            if message is None:
                self.dropped += 1
            else:
                messages.append(message)
        return messages

    def close(self) -> None:
        """Remove the socket and its folder; a sender then gets ECONNREFUSED or ENOENT."""
        self.socket.close()
        _remove(self.folder)


def sweep_sockets() -> int:
    """Remove the folders that killed supervisors of this user left; how many there were.

    One whose socket refuses a connection has no listener, and nobody binds a second one in it.
    """
    swept = 0
    for parent in set(_parents()):
        with contextlib.suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and _abandoned(Path(entry.path)):
                    _remove(Path(entry.path))
                    swept += 1
    return swept


def _abandoned(folder: Path) -> bool:
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or (found.st_uid, found.st_mode & 0o777) != (os.geteuid(), 0o700):
            return False
        names = os.listdir(folder)
        if not names:  # killed in between, or about to bind
            return time.time() - found.st_mtime > _UNBOUND
        return len(names) == 1 and _refuses(folder / names[0])
    except OSError:
        return False


def _refuses(path: Path) -> bool:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def _parents() -> list[str]:
    """Where a folder may be made, so that a socket in it has a path which the kernel takes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = ("/tmp", os.environ.get("TMPDIR"), "/var/tmp", "/dev/shm")
    # systemd takes its own away at the user's last logout, and a worker may still be importing torch then
    goes = (runtime or "").startswith("/run/user/")
    wanted = (*temporary, runtime) if goes else (runtime, *temporary)
    return [p for p in wanted if p and len(os.fsencode(p)) + len(_LONGEST) <= _PATH_LIMIT]


def _make_folder() -> str:
    error: OSError = OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    for parent in _parents():
        try:
            return _make_in(parent)
        except OSError as found:
            error = found
    raise _no_socket(error)


def _make_in(parent: str) -> str:
    while True:
        path = f"{parent}/{_PREFIX}{_random_name()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            return path


def _random_name() -> str:
    return os.urandom(4).hex()


def _remove(folder: Path) -> None:
    """Remove a folder and the socket in it; what cannot be removed is left for a later start."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(folder / name)
        os.rmdir(folder)


def _no_socket(error: OSError) -> NoSocket:
    text = (
        f"cannot make the socket for notifications in XDG_RUNTIME_DIR, TMPDIR or /tmp: {error.strerror or error}; "
        "set XDG_RUNTIME_DIR to a folder that can be written and has a short path"
    )
    return NoSocket(error.errno, text)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """All that came with a message; they are open in this process from then on."""
    found = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return list(found)


def _parse(data: bytes, ancillary: list[tuple[int, int, bytes]], truncated: bool) -> Message | None:
    if truncated:
        return None
    pid, uid = 0, -1
    for level, kind, payload in ancillary:
        if (
            level == socket.SOL_SOCKET
            and kind == socket.SCM_CREDENTIALS
            and len(payload) >= _CREDENTIALS.size
        ):
            pid, uid, _ = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])
    if pid <= 0 or uid not in (0, os.geteuid()):  # root may do anything here anyway, another user nothing
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fields = {}
    for line in text.split("\n"):
        key, separator, value = line.partition("=")
        if separator and key:
            fields[key] = value
    return Message(pid, fields) if fields else None
