"""The user's crontab, read and written through the program `crontab`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PATIENCE = 30.0  # seconds for one call, and for another of ours that edits
_TRIES = 5
_LOOK = 0.02  # seconds between two looks whether the other one is through
_NONE = "no crontab for"  # how crontab(1) says that the user has none


Change = Callable[[bytes], bytes]


class CrontabError(Exception):
    """The crontab could not be read or changed; the message says what `crontab` said."""


def edit(change: Change) -> bool:
    """Change the crontab of the user who calls; False where it was already as it should be.

    `change` must be idempotent. crontab(1) has no way to change a file only if nobody else did, so edits of ours
    wait for each other, and the result is read back: what another program overwrote is done again. Raises
    CrontabError.
    """
    with _alone():
        for _ in range(_TRIES):
            before = read()
            after = change(before)
            if after == before:
                return False
            _write(after)
            now = read()
            if now == after or change(now) == now:
                return True
    raise CrontabError("something else changes the crontab all the time; try again when it has ended")


def read() -> bytes:
    """The crontab as it is; empty where there is none."""
    done = _crontab("-l")
    told = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0:
        # Debian's shows a carriage return as these two characters; only its editor gets the file as it is
        return _as_edited() if b"\\r" in done.stdout else done.stdout
    if told.startswith(_NONE):
        return b""
    raise CrontabError(f'cannot read the crontab: "crontab -l" says: {told or done.returncode}')


def _as_edited() -> bytes:
    """The crontab as an editor is given it; this one copies it and changes nothing."""
    with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
        done = _crontab("-e", VISUAL=f"cp -t {shlex.quote(folder)}")
        found = list(Path(folder).iterdir())
        if len(found) != 1:
            told = done.stderr.decode(errors="replace").strip()
            raise CrontabError(f'cannot read the crontab: "crontab -e" gave no file, and says: {told}')
        return found[0].read_bytes()


def _write(text: bytes) -> None:
    done = _crontab("-", text=text) if text else _crontab("-r")
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip()
        raise CrontabError(f"cannot change the crontab, which is as it was: {told or done.returncode}")


def _crontab(*arguments: str, text: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["crontab", *arguments],
            input=text,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C", **env},
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise CrontabError(
            'there is no program "crontab" here; install cron, or hand the lines to whoever has it: '
            "outlast cron JOB prints them"
        ) from None
    except subprocess.TimeoutExpired:
        raise CrontabError(f'"crontab {arguments[0]}" did not end in {_PATIENCE:g} s') from None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let no other of our edits of this user's crontab run meanwhile, on this host.

    The lock is the user's home folder itself: it is there, it is theirs, and nothing is left behind. Where it
    cannot be locked, reading back has to do.
    """
    fd = -1
    with contextlib.suppress(OSError, KeyError):
        fd = os.open(pwd.getpwuid(os.geteuid()).pw_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(fd)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(_LOOK)
