"""A supervisor is gone only when its socket refuses and its process is gone."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from outlast_jobs.identity import ProcessIdentity
from outlast_worker.guardian import PERIOD, Guardian, supervisor_gone
from outlast_worker.notify import Notifier


def _dead() -> ProcessIdentity:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = ProcessIdentity.of(process.pid)
        process.communicate(b"\n")
    if identity is None:
        raise RuntimeError("the process ended too early")
    return identity


@pytest.mark.parametrize(
    ("identity_lives", "channel_works", "gone"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_one_sign_alone_proves_nothing(identity_lives: bool, channel_works: bool, gone: bool) -> None:
    """All four cells: gone is only a refused socket together with a dead process."""
    identity = ProcessIdentity.current() if identity_lives else _dead()
    assert supervisor_gone(identity, lambda: channel_works) is gone


def test_a_reused_pid_is_not_the_supervisor() -> None:
    """The pid of a living process with another start time, or of another boot, counts as gone."""
    mine = ProcessIdentity.current()
    assert supervisor_gone(msgspec.structs.replace(mine, start=mine.start - 1), lambda: False)
    assert supervisor_gone(msgspec.structs.replace(mine, boot="another"), lambda: False)


def test_nobody_named_is_nobody_gone() -> None:
    """Where the environment names no supervisor, or nonsense, none can die."""
    notifier = Notifier(None)
    assert not Guardian.from_env(notifier, {}).gone()
    assert not Guardian.from_env(notifier, {"OUTLAST_SUPERVISOR": "what"}).gone()


def test_the_guardian_notices_within_its_period(tmp_path: Path) -> None:
    """It looks once a period, notices a death at the next look, and never takes it back."""
    address = str(tmp_path / "n")
    now = [0.0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address)
        guardian = Guardian(_dead(), Notifier(address), clock=lambda: now[0])
        assert not guardian.gone()  # the socket works: it may live outside our pid namespace
    assert not guardian.gone()  # not looked at again yet
    now[0] += PERIOD
    assert guardian.gone()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        (tmp_path / "n").unlink()
        bound.bind(address)
        now[0] += PERIOD
        assert guardian.gone()
