"""Requests are seen wherever the run lies: by the kernel's word, or by looking."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.shortage import no_more_threads

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.inbox import Inbox


@pytest.mark.parametrize("network", [False, True])
def test_there_is_a_first_look(tmp_path: Path, network: bool) -> None:
    """Beginning to watch brings a look, since a request may lie there already; on a network disk others follow."""
    run = RunDirectory(tmp_path)
    run.create()
    looked = threading.Event()
    inbox = Inbox(run, network, looked.set)
    inbox.watch()
    try:
        assert looked.wait(30)
        assert (inbox.poll is not None) == network
    finally:
        inbox.close()


def test_without_a_thread_it_looks_by_itself(tmp_path: Path) -> None:
    """Where no thread is to be had requests are found by looking, and nothing fails."""
    run = RunDirectory(tmp_path)
    run.create()
    looked = threading.Event()
    inbox = Inbox(run, False, looked.set)
    with no_more_threads():
        inbox.watch()
    assert looked.is_set()
    assert inbox.poll is not None
    inbox.close()


def test_what_listens_to_forks_is_not_loaded_beside_one(tmp_path: Path) -> None:
    """The loop forks; modules that register for that with a lock are loaded by its own thread, when it does not."""
    code = (
        "import os, pathlib, sys\n"
        "import outlast_supervisor.session\n"
        "from outlast_jobs.rundir import RunDirectory\n"
        "from outlast_supervisor import inbox\n"
        "late = []\n"
        "register = os.register_at_fork\n"
        "def told(**how):\n"
        "    register(**how)\n"
        "    if 'before' in how and started: late.append(how)\n"
        "os.register_at_fork = told\n"
        "started = []\n"
        "inbox.start_thread = lambda work, name: (started.append(name), work())\n"
        "run = RunDirectory(pathlib.Path(sys.argv[1]))\n"
        "run.create()\n"
        "found = inbox.Inbox(run, False, lambda: None)\n"
        "found.watch()\n"
        "print(started, late, 'watchdog' in sys.modules)\n"
        "found.close()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['inbox'] [] True"
