"""Requests are seen wherever the run lies: by the kernel's word, or by looking."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

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
