"""A run directory that was copied, while its run goes on: two runs from then on, and neither ends the other."""

from __future__ import annotations

import os
import shutil
import signal

from tests.e2e.bare import bare
from tests.e2e.conftest import MakeRun

from outlast_jobs import events as journal


def test_a_copy_that_is_started_leaves_the_running_original_alone(make_run: MakeRun) -> None:
    """The copy runs to its end beside the original, whose worker goes on in its first attempt."""
    original = make_run(bare(["sh", "-c", "touch up; exec sleep 1000"]))
    first = original.start()
    original.until((original.folder / "up").exists, "the original's worker")
    worker = first.worker()

    copy = make_run(bare(["true"]))
    shutil.copytree(original.directory.path, copy.directory.path)
    assert copy.start().wait() == 0, copy.report()
    assert not copy.records(journal.LEFTOVERS_ENDED)
    assert copy.attempts() == [1, 2]

    os.kill(worker, 0)
    assert first.worker_now() == worker
    assert original.attempts() == [1]
    assert original.cli("stop", str(original.directory.path)).code == 0
    assert first.wait() == 70


def test_a_copy_is_not_taken_to_be_supervised_because_its_original_is(make_run: MakeRun) -> None:
    """Its status says that nobody has it, and it is held at once: no request waits for whoever starts it next."""
    original = make_run(bare(["sh", "-c", "touch up; exec sleep 1000"]))
    first = original.start()
    original.until_status(lambda status: status["state"] == "running", "the original's worker")
    copy = make_run(bare(["true"]))
    shutil.copytree(original.directory.path, copy.directory.path)

    place = str(copy.directory.path)
    assert "gone since" in copy.cli("status", place).out
    assert "gone" not in original.cli("status", str(original.directory.path)).out
    stopped = copy.cli("stop", place)
    assert (stopped.code, "the run is held" in stopped.out) == (0, True), stopped
    assert not list(copy.directory.requests.iterdir())
    assert first.running()
    first.send(signal.SIGTERM)
    assert first.wait() == 75
