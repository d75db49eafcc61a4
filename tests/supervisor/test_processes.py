"""Ending what an attempt started: found by descent and marker, told by identity, roots before children."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.disk import own_mounts
from tests.realparts import needs
from tests.shortage import no_more_files
from tests.waiting import wait_until

from outlast_jobs.identity import ProcessIdentity
from outlast_supervisor import processes

RUN_ID = uuid.uuid4().hex  # of this test process alone: others may run the same tests beside it


def spawn(code: str, **env: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, **env},
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has said that it is ready
    return process


@pytest.fixture
def families() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended when the test is."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        for pid in [*processes.descendants([process.pid]), process.pid]:
            if (identity := ProcessIdentity.of(pid)) is not None:
                processes.send(identity, signal.SIGKILL)
        process.wait()


PARENT = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], env={})
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_process_that_cleared_its_environment_is_found_through_its_parent(
    families: list[subprocess.Popen[bytes]],
) -> None:
    """Survivors are the marked ones and all below them; only the top one is a root."""
    parent = spawn(PARENT, OUTLAST_RUN_ID=RUN_ID)
    families.append(parent)
    found = processes.of_run(RUN_ID)
    assert parent.pid in {p.pid for p in found.all}
    assert len(found.all) == 2
    assert [p.pid for p in found.roots] == [parent.pid]


def test_another_runs_processes_are_not_found(families: list[subprocess.Popen[bytes]]) -> None:
    """A marker that only begins alike is another run's."""
    families.append(spawn("print(1, flush=True); import time; time.sleep(1000)", OUTLAST_RUN_ID=RUN_ID + "1"))
    assert not processes.of_run(RUN_ID[:-1] + "g")
    assert not processes.of_run(RUN_ID)


def test_a_reused_pid_is_never_signalled(families: list[subprocess.Popen[bytes]]) -> None:
    """A recorded identity whose start time is another one's reaches nobody."""
    innocent = spawn("print(1, flush=True); import time; time.sleep(1000)")
    families.append(innocent)
    now = ProcessIdentity.of(innocent.pid)
    assert now is not None
    assert not processes.send(ProcessIdentity(now.pid, now.start - 1, now.boot), signal.SIGKILL)
    assert not processes.send(ProcessIdentity(now.pid, now.start, "another boot"), signal.SIGKILL)
    assert innocent.poll() is None


SHIELDED = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(1, flush=True)
time.sleep(1000)
"""


def test_a_process_deaf_to_term_is_killed_at_once_unless_spared(
    families: list[subprocess.Popen[bytes]],
) -> None:
    """Nothing is waited for where TERM cannot arrive; a loader of a living trainer is left alone."""
    deaf = spawn(SHIELDED)
    families.append(deaf)
    identity = ProcessIdentity.of(deaf.pid)
    assert identity is not None
    family = processes.Survivors((identity,), (identity,))
    assert not processes.heeds(deaf.pid, signal.SIGTERM)
    processes.end(family, "term", spare_shielded=True)
    assert deaf.poll() is None
    processes.end(family, "term", spare_shielded=False)
    assert wait_until(lambda: deaf.poll() is not None and [deaf.poll()], 60, "its end") == [-signal.SIGKILL]


def test_term_goes_to_roots_and_kill_to_all(families: list[subprocess.Popen[bytes]]) -> None:
    """A trainer is told to save before its loader processes are ended."""
    parent = spawn(PARENT, OUTLAST_RUN_ID=RUN_ID)
    families.append(parent)
    found = processes.of_run(RUN_ID)
    assert processes.end(found, "term", spare_shielded=True) == 1
    parent.wait(timeout=60)
    child = next(p for p in found.all if p.pid != parent.pid)
    assert child.alive()
    assert processes.end(found, "kill", spare_shielded=True) == 1
    wait_until(lambda: not child.alive(), 60, "the child's end")


def test_what_somebody_stopped_is_set_going_to_end(families: list[subprocess.Popen[bytes]]) -> None:
    """A process that was suspended heeds TERM all the same, and not KILL alone in the end."""
    stopped = spawn(
        "import signal, sys; signal.signal(15, lambda n, f: sys.exit(3)); print(flush=True); signal.pause()"
    )
    families.append(stopped)
    stopped.send_signal(signal.SIGSTOP)
    identity = ProcessIdentity.of(stopped.pid)
    assert identity is not None
    processes.end(processes.Survivors((identity,), (identity,)), "term", spare_shielded=True)
    assert stopped.wait(timeout=60) == 3


def test_who_lost_its_parent_while_we_looked_is_told_by_itself(
    families: list[subprocess.Popen[bytes]],
) -> None:
    """A process found below one that is dead by now is a root, which is the one that is told to end."""
    parent = spawn(PARENT)
    families.append(parent)
    (child,) = processes.descendants([parent.pid])
    identity = ProcessIdentity.of(child)
    assert identity is not None
    parent.kill()
    parent.wait()
    try:
        assert processes._survivors([parent.pid], [child]).roots == (identity,)
    finally:
        processes.send(identity, signal.SIGKILL)


def test_an_orphan_that_comes_to_us_while_we_look_is_not_overlooked(
    families: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that dies between two reads gives its own children to us behind our back: they are found."""
    orphan = spawn("print(1, flush=True); import time; time.sleep(1000)")
    families.append(orphan)
    dead = spawn("print(1, flush=True)")
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    families.append(dead)
    looks = iter([[dead.pid], [dead.pid, orphan.pid], [dead.pid, orphan.pid]])

    def children(pid: int) -> list[int]:
        return next(looks) if pid == os.getpid() else []

    monkeypatch.setattr(processes, "children_of", children)
    assert [p.pid for p in processes.of_this_supervisor().all] == [orphan.pid]


def test_nothing_is_left_where_all_that_we_have_is_dead(families: list[subprocess.Popen[bytes]]) -> None:
    """Children that have ended, reaped or not, are nothing left; hooks are none of the attempt's."""
    dead = spawn("print(1, flush=True)")
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    others = {pid for pid in processes.children_of(os.getpid()) if pid != dead.pid}
    assert not processes.of_this_supervisor(others.__contains__)
    families.append(dead)


def test_the_last_descriptor_is_enough_to_end_a_process(families: list[subprocess.Popen[bytes]]) -> None:
    """Where a pid can be pinned and then nothing can be opened to look whose it is, the signal comes all the same."""
    families.append(spawn("print(flush=True); import time; time.sleep(1000)"))
    identity = ProcessIdentity.of(families[0].pid)
    assert identity is not None
    with no_more_files(but_one=True):
        sent = processes.send(identity, signal.SIGKILL)
    assert sent
    assert families[0].wait() == -signal.SIGKILL


@pytest.mark.parametrize("listed", [True, False])
def test_who_cannot_look_has_not_seen_that_nothing_is_left(
    families: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Without a descriptor to look with it is an error, never an empty answer."""
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: listed)
    families.append(spawn("print(flush=True); import time; time.sleep(1000)", OUTLAST_RUN_ID=RUN_ID))
    ways = (lambda: processes.of_this_supervisor(), lambda: processes.of_run(RUN_ID))
    for way in ways:
        with no_more_files(), pytest.raises(OSError, match="Too many open files"):
            way()
        assert families[0].pid in [found.pid for found in way().all]


def test_children_are_found_where_the_kernel_lists_none(
    families: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kernel without lists of children every process is asked for its parent."""
    parent = spawn(PARENT)
    families.append(parent)
    listed = processes.children_of(parent.pid)
    assert len(listed) == 1
    monkeypatch.setattr(processes, "_kernel_lists_children", lambda: False)
    assert processes.children_of(parent.pid) == listed


LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print(1, flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_until_its_last_thread_ends(families: list[subprocess.Popen[bytes]]) -> None:
    """One whose first thread has ended looks like a zombie and is none."""
    process = spawn(LEADERLESS)
    families.append(process)
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(
        lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 10, "the end of its first thread"
    )
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert processes.send(identity, signal.SIGKILL)
    process.wait()
    assert ProcessIdentity.of(process.pid) is None


HANDLES_HUP = """
import signal, sys
signal.signal(signal.SIGHUP, lambda n, f: sys.exit(75))
print(1, flush=True)
while True: signal.pause()
"""


def test_what_handles_the_jobs_stop_signal_gets_that(families: list[subprocess.Popen[bytes]]) -> None:
    """Of what is left, a process with a handler for the job's stop signal is not cut by TERM; others are."""
    saves, plain = spawn(HANDLES_HUP), spawn("print(1, flush=True); import time; time.sleep(1000)")
    families += [saves, plain]
    found = tuple(i for p in (saves, plain) if (i := ProcessIdentity.of(p.pid)) is not None)
    processes.end(processes.Survivors(found, found), "term", spare_shielded=True, stop=signal.SIGHUP)
    assert saves.wait(60) == 75
    assert plain.wait(60) == -signal.SIGTERM


def test_who_has_inherited_a_lock_is_found_whatever_its_environment(
    families: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The holder of a lock is seen through its descriptors; who merely has the file open is not one."""
    path = tmp_path / "alive"
    with path.open("w") as locked, path.open() as looking:
        fcntl.flock(locked, fcntl.LOCK_SH)
        code = "print(1, flush=True); import time; time.sleep(1000)"
        for file in (locked, looking):
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, env={}, pass_fds=(file.fileno(),)
            )
            families.append(process)
    found = processes.holding(path)
    assert [p.pid for p in found.all] == [families[0].pid]


@needs("namespaces")
@pytest.mark.parametrize("kind", ["disks", "volumes of one disk"])
def test_a_lock_on_another_disk_is_another_lock(
    tmp_path: Path, families: list[subprocess.Popen[bytes]], kind: str
) -> None:
    """Two files of one name and one inode number on two disks are two: who locks the one holds not the other."""
    if kind != "disks" and shutil.which("mkfs.btrfs") is None:
        pytest.skip("no file system with volumes on this machine")
    code = "import time; print(flush=True); time.sleep(1000)"
    with own_mounts():
        files = [folder / "alive" for folder in two_disks(tmp_path, one=kind != "disks")]
        for path in files:
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                command = [sys.executable, "-c", code]
                pass_on = (file.fileno(),)
                families.append(subprocess.Popen(command, stdout=subprocess.PIPE, env={}, pass_fds=pass_on))
        assert files[0].stat().st_ino == files[1].stat().st_ino
        for path, process in zip(files, families, strict=True):
            assert [p.pid for p in processes.holding(path).all] == [process.pid]
        for process in families:
            process.kill()
            process.wait()
        subprocess.run(
            ["umount", "--lazy", *(str(tmp_path / name) for name in ("one", "other"))], check=False
        )


def two_disks(folder: Path, *, one: bool) -> tuple[Path, Path]:
    """Two places whose files are numbered alike: two disks, or two volumes of one."""
    first, second = folder / "one", folder / "other"
    first.mkdir()
    second.mkdir()
    if one:
        run("truncate", "-s", "200M", str(folder / "image"))
        run("mkfs.btrfs", "-q", str(folder / "image"))
        run("mount", "-o", "loop", str(folder / "image"), str(first))
        run("btrfs", "subvolume", "create", str(first / "volume"))
        return first, first / "volume"
    for place in (first, second):
        run("mount", "-t", "tmpfs", "tmpfs", str(place))
    return first, second


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
