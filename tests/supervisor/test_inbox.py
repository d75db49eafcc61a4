"""Requests are seen wherever the run lies: by the kernel's word, or by looking."""

from __future__ import annotations

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
