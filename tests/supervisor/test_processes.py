"""Ending what an attempt started: found by descent and marker, told by identity, roots before children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
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
    assert wait_until(lambda: deaf.poll() is not None and [deaf.poll()], 10, "its end") == [-signal.SIGKILL]


def test_term_goes_to_roots_and_kill_to_all(families: list[subprocess.Popen[bytes]]) -> None:
    """A trainer is told to save before its loader processes are ended."""
    parent = spawn(PARENT, OUTLAST_RUN_ID=RUN_ID)
    families.append(parent)
    found = processes.of_run(RUN_ID)
    assert processes.end(found, "term", spare_shielded=True) == 1
    parent.wait(timeout=10)
    child = next(p for p in found.all if p.pid != parent.pid)
    assert child.alive()
    assert processes.end(found, "kill", spare_shielded=True) == 1
    wait_until(lambda: not child.alive(), 10, "the child's end")
