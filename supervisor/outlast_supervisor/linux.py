"""The few Linux calls that Python does not wrap, or not in every build: prctl, pidfds, hole punching."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
# the same on all architectures; Python lacks both calls where it was built against older headers (conda, uv)
_NR_PIDFD_SEND_SIGNAL = 424
_NR_PIDFD_OPEN = 434


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def pidfd_open(pid: int) -> int:
    """A descriptor that pins a process; ENOSYS where the kernel has none, EPERM where a sandbox hides them."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _called(_NR_PIDFD_OPEN, "pidfd_open", pid, 0)


def pidfd_send_signal(fd: int, number: int) -> None:
    """Signal the process that a descriptor pins."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(fd, number)
    else:
        _called(_NR_PIDFD_SEND_SIGNAL, "pidfd_send_signal", fd, number, 0, 0)


def _called(number: int, call: str, *arguments: int) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends (prctl(2))."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def become_subreaper() -> None:
    """Have orphans among our descendants become our children, so that none can hide (prctl(2))."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def allocate(fd: int, length: int) -> None:
    """Have the blocks of a length set aside, without a change of the file's size (fallocate(2))."""
    _check(_LIBC.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length)), "fallocate")


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the file system; the file keeps its length (fallocate(2))."""
    flags = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    _check(_LIBC.fallocate(fd, flags, ctypes.c_long(offset), ctypes.c_long(length)), "fallocate")


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, whose end SIGHUP would then tell."""
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
