"""Properties of process identity: nothing but the very same live process is ever taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.e2e.bare import in_namespace
from tests.shortage import no_more_files

from outlast_jobs import identity
from outlast_jobs.identity import ProcessIdentity, boot_id, hostname
from outlast_jobs.lease import Holder


def test_own_identity_is_alive_and_survives_text() -> None:
    """The identity of the calling process is alive, and str and parse are inverse."""
    own = ProcessIdentity.current()
    assert own.alive()
    assert own.pid == os.getpid()
    assert own.boot == boot_id()
    assert ProcessIdentity.parse(str(own)) == own
    assert ProcessIdentity.of(os.getpid()) == own


def test_a_reused_pid_is_another_process() -> None:
    """A pid that now belongs to another process, or to one of another boot, does not count as alive."""
    innocent = subprocess.Popen(["sleep", "1000"])
    try:
        recorded = ProcessIdentity.of(innocent.pid)
        assert recorded is not None
        assert recorded.alive()
        assert not replace(recorded, start=recorded.start - 1).alive()
        assert not replace(recorded, boot="00000000-0000-0000-0000-000000000000").alive()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.parametrize("content", [None, ""])
def test_a_boot_without_an_id_is_known_to_be_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """Where a sandbox hides the id processes are told apart, and no other host's is taken for dead or alive."""
    hidden = tmp_path / "boot_id"
    if content is not None:
        hidden.write_text(content)
    monkeypatch.setattr(identity, "_BOOT_ID", hidden)
    boot_id.cache_clear()
    try:
        own, holder = ProcessIdentity.current(), Holder.current()
        assert own.alive()
        assert ProcessIdentity.parse(str(own)) == own
        assert not replace(own, start=own.start - 1).alive()
        assert holder.alive() is None
    finally:
        monkeypatch.undo()
        boot_id.cache_clear()
    assert holder.alive() is None


def test_a_zombie_is_dead() -> None:
    """A process that has ended but was not reaped is not alive, though its pid is still taken."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(child.pid)
    assert identity is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from here on
    assert os.access(f"/proc/{child.pid}/stat", os.F_OK)
    assert not identity.alive()
    assert ProcessIdentity.of(child.pid) is None
    child.communicate()
    assert not identity.alive()


def test_a_name_with_blanks_and_parentheses_is_read_past() -> None:
    """The start time is right whatever the command calls itself."""
    code = "open('/proc/self/comm','w').write('a) Z 1 (b'); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    before = ProcessIdentity.of(child.pid)
    if child.stdout is None:
        raise RuntimeError("the child has no stdout")
    child.stdout.readline()
    assert before is not None
    assert before.alive()
    child.communicate(b"\n")


@pytest.mark.parametrize(
    "text", ["", "1", "1:2", "0:2:boot", "-1:2:boot", "1:x:boot", "1:2:", "1:2:3:4", "²:2:boot", " 1:2:b"]
)
def test_other_text_is_refused(text: str) -> None:
    """Anything but PID:START:BOOT is a ValueError that quotes it."""
    with pytest.raises(ValueError, match="expected"):
        ProcessIdentity.parse(text)


def test_this_host_has_a_name() -> None:
    """The host name is never empty."""
    assert hostname()


def test_what_cannot_be_looked_at_is_not_dead() -> None:
    """Without a descriptor to look with a holder is neither alive nor dead, and `seen` is an error."""
    own, holder = ProcessIdentity.current(), Holder.current()
    with no_more_files():
        alive, found = holder.alive(), ProcessIdentity.of(own.pid)
        with pytest.raises(OSError, match="Too many open files"):
            ProcessIdentity.seen(own.pid)
    assert (alive, found) == (None, None)
    assert (holder.alive(), ProcessIdentity.seen(own.pid)) == (True, own)


OTHER_TIME = ["unshare", "--time", "--boottime", "1000", "--fork", "--kill-child"]


@pytest.mark.skipif(not in_namespace(*OTHER_TIME[1:]), reason="needs the right to make a time namespace")
def test_a_holder_of_another_time_namespace_is_neither_dead_nor_alive() -> None:
    """There the kernel tells another start of the same process: what it says of itself says nothing here."""
    code = (
        "from outlast_jobs.lease import *; print(msgspec.json.encode(Holder.current()).decode(), flush=True)"
    )
    words = [*OTHER_TIME, sys.executable, "-c", f"{code}; input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        holder = msgspec.json.decode(process.stdout.readline(), type=Holder)
        assert not holder.identity.alive(), "this test needs them to differ"
        assert holder.alive() is None
        process.communicate(b"\n")
    assert Holder.current().alive()
